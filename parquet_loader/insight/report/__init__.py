"""A run as one page of HTML."""

from .page import report, write_report

__all__ = ["report", "write_report"]
