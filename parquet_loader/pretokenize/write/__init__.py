"""Tokenized Parquet, so that an interrupted run loses nothing."""
