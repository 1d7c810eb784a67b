"""Text from files, which may hold anything, for a terminal."""

from __future__ import annotations

import unicodedata

__all__ = ["printable"]


def printable(text: str) -> str:
    """The text without what a terminal would obey or hide: control characters are shown by their codes.

    >>> printable("a\\x1b[31mb\\tc\\u202e")
    'a\\\\x1b[31mb\\tc\\\\u202e'

    Tabs and line ends stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else _code(each) for each in text)


def _code(sign: str) -> str:
    # Spaces that are not ASCII's, and what joins signs in emoji and in many scripts.
    if unicodedata.category(sign) == "Zs" or sign in "\u200c\u200d":
        return sign
    return sign.encode("unicode_escape").decode("ascii")
