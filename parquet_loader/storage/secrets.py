"""Keeps passwords, keys and tokens out of whatever people may see."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

__all__ = ["Scrubber", "has_password", "redact"]

E = TypeVar("E", bound=Exception)

# user:password@ in a URL. A password may hold slashes; a port is none.
_PASSWORD = re.compile(r"^(?!git(?:hub)?://)[\w+.-]+://[^/@:]*:(?!\d+/)[^@]*@")
_SECRET_NAMES = re.compile(r"secret|token|pass|key|sas|credential|connection|auth", re.IGNORECASE)
_SECRET_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def has_password(url: str) -> bool:
    """Whether a URL holds a password or key before its host."""
    return _PASSWORD.match(url) is not None


def redact(url: str) -> str:
    """A URL without what may hold a password or token: ``s3://key:secret@bucket`` becomes ``s3://bucket``."""

    def redact_link(link: str) -> str:
        if link.startswith(("http://", "https://")):
            return re.sub(r"//[^/@]*@", "//", link.partition("?")[0])
        return _PASSWORD.sub(lambda match: match[0].split("://")[0] + "://", link)

    return "::".join(map(redact_link, url.split("::")))


class Scrubber:
    """Knows the secrets of one source, and makes errors that show none of them.

    Args:
        urls: the source's.
        options: its ``storage_options``.
    """

    def __init__(self, urls: Iterable[str], options: Mapping[str, Any]) -> None:
        self._secrets = _secrets(urls, options)

    def scrub(self, text: str) -> str:
        """The text with stars for every secret."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def failure(self, kind: Callable[[str], E], text: str, cause: BaseException) -> E:
        """An error of a kind, its text without secrets, and its cause where that shows none either."""
        failure = kind(self.scrub(text))
        link: BaseException | None = cause
        while link is not None and self.scrub(str(link)) == str(link):
            link = link.__cause__ or link.__context__
        if link is None:
            failure.__cause__ = cause
        return failure


def _secrets(urls: Iterable[str], options: Mapping[str, Any]) -> list[str]:
    """Strings that no error may show, the longest first."""
    found = {os.environ.get(name, "") for name in _SECRET_VARIABLES}

    def collect(value: object, secret: bool) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                collect(inner, secret or bool(_SECRET_NAMES.search(str(name))))
        elif isinstance(value, (list, tuple, set)):
            for inner in value:
                collect(inner, secret)
        elif secret and isinstance(value, (str, bytes)):
            found.add(os.fsdecode(value))

    collect(options, False)
    for url in urls:
        for link in url.split("::"):
            password = _PASSWORD.match(link)
            if password:
                found.update(password[0].split("://", 1)[1].rstrip("@").split(":", 1))
            elif link.startswith(("http://", "https://")):
                found.update(re.findall(r"//([^/@]*)@", link), [link.partition("?")[2]])
    return sorted((secret for secret in found if len(secret) > 3), key=len, reverse=True)
