"""File formats: bytes of a row group to a `TokenBlock`."""
