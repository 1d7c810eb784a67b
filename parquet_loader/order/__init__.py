"""The order of a run: pure arithmetic."""
