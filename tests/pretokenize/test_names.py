"""Options in messages: as Python has them, and as the command does."""

from __future__ import annotations

from dataclasses import fields

import pytest

from parquet_loader.pretokenize.convert.command import ConvertOptions
from parquet_loader.pretokenize.convert.corpora import TokenizedOptions
from parquet_loader.pretokenize.names import as_arguments


@pytest.mark.parametrize(
    ("python", "command"),
    [
        ("give overwrite=True to replace it.", "give --overwrite to replace it."),
        ("max_docs is for one rank.", "--max-docs is for one rank."),
        ("or raise max_record_bytes.", "or raise --max-record-bytes."),
        ("output='a b' is not empty", "--output 'a b' is not empty"),
        ('output="it\'s" is', "--output 'it'\"'\"'s' is"),
        (r"""output='it\'s "x"' is""", """--output 'it'"'"'s "x"' is"""),
        ("inputs='x' is", "--input x is"),
        ("world_size=4.", "--world-size 4."),
        ("the hash, a step and a rank of the input", "the hash, a step and a rank of the input"),
        ("/data/seen_hashes/a.txt: bad", "/data/seen_hashes/a.txt: bad"),
        ("max_docs.jsonl:3: bad", "max_docs.jsonl:3: bad"),
        ("column 'text_column': no such field", "column 'text_column': no such field"),
        ("x_max_docs and max_docs_y", "x_max_docs and max_docs_y"),
    ],
)
def test_the_command_names_options_as_arguments_and_nothing_else(python: str, command: str) -> None:
    assert as_arguments(python) == command


@pytest.mark.parametrize("name", [each.name for kind in (ConvertOptions, TokenizedOptions) for each in fields(kind)])
def test_every_option_of_a_conversion_is_named_as_an_argument(name: str) -> None:
    if name != "reading":  # holds the others
        assert as_arguments(f"give {name}=3.") == f"give --{name.replace('_', '-')} 3."
