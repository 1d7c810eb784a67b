"""The command ``parquet-loader``."""

from .main import main

__all__ = ["main"]
