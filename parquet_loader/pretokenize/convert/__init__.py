"""Sets that are tokenized already, to Parquet."""
