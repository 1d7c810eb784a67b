#!/usr/bin/env python3
"""Text to tokenized Parquet. ``python tools/pretokenize.py --help`` says how; docs/pretokenize.md says more."""

import os
import signal


def end(number: int, frame: object) -> None:
    os.write(2, b"interrupted; nothing was written\n")
    os._exit(128 + number)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)  # imports take up to a second, and a traceback from among them says nothing
    from parquet_loader.pretokenize.cli import command

    command()
