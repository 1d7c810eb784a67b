"""`DatasetIndex`: which row groups there are, where their tokens lie, how many they hold."""

from .build import build_index
from .cache import default_cache_dir
from .index import DatasetIndex

__all__ = ["DatasetIndex", "build_index", "default_cache_dir"]
