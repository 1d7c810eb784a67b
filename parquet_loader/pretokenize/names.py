"""How the command names options: what an error calls ``text_column`` in Python is ``--text-column`` in a shell.

Messages are written for Python. An option is named in one of three ways, and no other text is taken for one::

    max_record_bytes      a name of several words
    overwrite=True        a switch
    step='finish'         a value, as Python writes it

and ``aligned={'labels': -100}``, which is ``--aligned labels=-100``.
"""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import fields

from .options import PretokenizeOptions

__all__ = ["CONVERT_NAMES", "as_arguments"]

# What only the conversion of tokenized corpora has; its module imports this one.
CONVERT_NAMES = ("aligned", "column", "dtype", "eos_appended", "eos_id", "format", "input", "vocab_size")
_KNOWN = {*CONVERT_NAMES, *(each.name for each in fields(PretokenizeOptions))}
_NAMES = "|".join(sorted(_KNOWN, key=len, reverse=True))
_VALUE = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\w+"""
# What stands within a path, a quoted text or another name is not meant.
_OPTION = re.compile(rf"(?<![\w./'\"-])({_NAMES})(?:=({_VALUE})|(?![\w/'\"=-]|\.\w))")

_ALIGNED = re.compile(r"(?<![\w./'\"-])aligned=(\{'\w+': [-\w.]+\}|[(\[]'\w+'(?:, '\w+')*,?[)\]])")


def as_arguments(message: str) -> str:
    """The message as the command says it.

    >>> as_arguments("max_record_bytes is 5: raise max_record_bytes, or give overwrite=True and step='finish'.")
    '--max-record-bytes is 5: raise --max-record-bytes, or give --overwrite and --step finish.'
    >>> as_arguments("text_column/a.txt:1: the text has no step.")
    'text_column/a.txt:1: the text has no step.'
    """
    return _OPTION.sub(_argument, _ALIGNED.sub(_aligned, message))


def _aligned(match: re.Match[str]) -> str:
    given = ast.literal_eval(match[1])
    values = given if isinstance(given, dict) else dict.fromkeys(given)
    return "--aligned " + ",".join(name if value is None else f"{name}={value}" for name, value in values.items())


def _argument(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    if value is None and "_" not in name:
        return match[0]  # a word like any other
    option = f"--{'input' if name == 'inputs' else name.replace('_', '-')}"
    if value is None or value == "True":
        return option
    return f"{option} {value if value.isidentifier() or value.isdigit() else shlex.quote(ast.literal_eval(value))}"
