"""Parquet: footers to index entries, column chunks to `TokenBlock`s."""
