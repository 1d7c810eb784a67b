"""`DatasetIndex`: which row groups there are, where their tokens lie, how many they hold."""

from .index import DatasetIndex, build_index, default_cache_dir

__all__ = ["DatasetIndex", "build_index", "default_cache_dir"]
