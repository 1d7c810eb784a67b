"""The command ``parquet-loader``."""

from .index import main

__all__ = ["main"]
