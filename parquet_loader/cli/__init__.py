"""The commands of `parquet-loader`."""
