"""Where files lie: listing, reading, writing; every filesystem's errors are translated here."""

from .base import FileInfo, Storage
from .opening import Source, open_storage

__all__ = ["FileInfo", "Source", "Storage", "open_storage"]
