"""``python -m parquet_loader.pretokenize``."""

from .cli import command

if __name__ == "__main__":
    command()
