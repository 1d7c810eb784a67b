"""Corpora that are tokenized already, to the Parquet that `ParquetLoader` reads."""

from .command import ConvertOptions, convert, main

__all__ = ["ConvertOptions", "convert", "main"]
