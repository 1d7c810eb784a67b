"""Keeps passwords, keys, tokens and signatures out of whatever people may see.

Two things make a leak impossible rather than unlikely. What a user gives becomes a `Location` at once: a string that
*is* its public form, so that to show, store or compare it cannot show a secret; only `Location.given` opens it. And
what a filesystem says passes a `Scrubber` at the one border where its errors become the library's.

    given       https://user:pw@host/set/a.parquet?X-Amz-Signature=0a1b#part
    public      https://host/set/a.parquet
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote

__all__ = ["WEB", "Link", "Location", "Scrubber", "causes", "redact"]

E = TypeVar("E", bound=Exception)

WEB = ("http", "https")

_SCHEME = re.compile(r"^([A-Za-z][\w+.-]*)://")
# Where what stands before the host is a user. Elsewhere it is one only with a password: abfs://container@account.
_USER_SCHEMES = r"(?:https?|s?ftps?|ssh|smb|web\w+|hdfs|dav)"
_USER = re.compile(rf"^(?:https?://[^/?#]*@|{_USER_SCHEMES}://(?<!http://)(?<!https://)[^/]*@)", re.IGNORECASE)
_PASSWORD = re.compile(r"^(?!git(?:hub)?://|https?:)[\w+.-]+:///*[^/]*:[^/]*@", re.IGNORECASE)
# What is no port is the rest of a password, with signs that should have been encoded.
_NO_PORT = re.compile(r"[^/\[?#]*:(?!\d*(?:[/?#]|$)).*@", re.DOTALL)
_IN_PASSWORD = re.compile(r"^[\w+.-]+://[^/\[?#]*:(?!\d*(?:[/?#]|$))")
# In a web address a query is what follows ?. Elsewhere ? may be a wildcard and # part of a name, but not before name=.
# A version of an object is no secret, and part of its name.
_QUERY = re.compile(r"[?#](?!versionId=[^&]*$)[A-Za-z][\w.~%-]*=.*", re.DOTALL)
_WEB_QUERY = re.compile(r"[?#].*", re.DOTALL)
_SECRET_NAMES = re.compile(r"secret|token|pass|key|sas|credential|connection|auth", re.IGNORECASE)
_SECRET_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_URL_IN_TEXT = re.compile(r"\b[A-Za-z][\w+.-]*://[^\s'\"<>]+")


class Location(str):
    """A path or URL that a user gave. As a string it is its public form; only `given` is what opens it.

    Attributes:
        given: the whole of it, secrets included.
    """

    __slots__ = ("given",)
    given: str

    def __new__(cls, given: str) -> Location:  # noqa: D102
        whole = getattr(given, "given", given)
        new = super().__new__(cls, redact(whole))
        new.given = _SCHEME.sub(lambda match: match[0].lower(), whole)
        return new

    def __reduce__(self) -> tuple[object, ...]:
        return Location, (self.given,)

    @property
    def links(self) -> list[Link]:
        """The links of a chained URL, one for a plain URL or path."""
        return _links(self.given)


class Link:
    """One link of a URL, taken apart.

    Attributes:
        scheme: in lower case, "" for a plain path.
        user: what stands before the host.
        query: from ``?`` or ``#`` on.
        public: the rest.
        opens: what a filesystem is opened with.
        is_openable: False where the filesystem has no use for a user, and would take it for a name.
    """

    def __init__(self, given: str) -> None:
        scheme = _SCHEME.match(given)
        self.scheme = scheme[1].lower() if scheme else ""
        host = begin = scheme.end() if scheme else 0
        if scheme:
            user = _USER.match(given) or _PASSWORD.match(given)
            host = user.end() if user else begin
            no_port = None if self.scheme.startswith("git") else _NO_PORT.match(given, host)
            host = no_port.end() if no_port else host
        self.user, named = given[begin : max(begin, host - 1)], given[host:]
        query = (_WEB_QUERY if self.scheme in WEB else _QUERY).search(named) if scheme else None
        self.query = query[0] if query else ""
        named = named[: len(named) - len(self.query)]
        # fsspec would cut a password at such signs, and take the rest for a host, a path or another link.
        knows_users = re.fullmatch(_USER_SCHEMES, self.scheme) and not re.search("::|[/?#]", self.user)
        self.is_openable = not self.user or self.scheme in WEB or bool(knows_users)
        if not self.is_openable:
            named = named.rpartition("@")[2]  # a password may hold @ and / as well; no such URL is opened, only refused
        self.public = f"{self.scheme}://{named}" if scheme else named
        # Web addresses are opened by their public form; `WebClient` adds the rest to each request.
        self.opens = f"{self.scheme}://{self.user}@{named}" if self.user and self.scheme not in WEB else self.public


def _links(url: str) -> list[Link]:
    if "://" not in url:
        return [Link(url)]
    texts: list[str] = []
    pieces = url.split("::")
    for at, piece in enumerate(pieces):
        rest = "::".join(pieces[at:])
        # A signature or a password may hold two colons: within it only a scheme begins another link.
        if (
            texts
            and not _SCHEME.match(piece)
            and (Link(texts[-1]).query or ("@" in rest and _IN_PASSWORD.match(texts[-1])))
        ):
            texts[-1] += "::" + piece
        else:
            texts.append(piece)
    return [Link(text) for text in texts]


def redact(url: str) -> str:
    """A URL without user info, query and fragment: ``s3://key:secret@bucket`` becomes ``s3://bucket``."""
    return "::".join(link.public for link in _links(url))


class Scrubber:
    """Knows the secrets of one source, and makes errors that show none of them.

    Args:
        urls: the source's.
        options: its ``storage_options``.
    """

    def __init__(self, urls: Iterable[str], options: Mapping[str, Any]) -> None:
        secrets = sorted(_secrets(urls, options), key=len, reverse=True)
        self._secrets = re.compile("|".join(map(_in_any_writing, secrets)), re.IGNORECASE) if secrets else None

    def scrub(self, text: str) -> str:
        """The text with stars for every secret, in whatever way it is quoted, and no URL's query."""
        text = _URL_IN_TEXT.sub(lambda match: redact(match[0]), text)
        return self._secrets.sub("***", text) if self._secrets else text

    def failure(self, kind: Callable[[str], E], text: str, cause: BaseException) -> E:
        """An error of a kind, its text without secrets, and its cause where that shows none either."""
        failure = kind(self.scrub(text))
        if self._is_clean(cause):
            failure.__cause__ = cause
        return failure

    def _is_clean(self, error: BaseException) -> bool:
        return all(
            self.scrub(text) == text for link in causes(error) for text in (str(link), repr(link).replace("\\\\", "\\"))
        )


def causes(error: BaseException) -> list[BaseException]:
    """An error and what it came from."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is not None and link not in found:
            found.append(link)
            waiting += [link.__context__, link.__cause__]
    return found


def _secrets(urls: Iterable[str], options: Mapping[str, Any]) -> set[str]:
    """Strings that no error may show, decoded."""
    found = {os.environ.get(name, "") for name in _SECRET_VARIABLES}

    def collect(value: object, secret: bool) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                collect(inner, secret or bool(_SECRET_NAMES.search(str(name))))
        elif isinstance(value, (list, tuple, set)):
            for inner in value:
                collect(inner, secret)
        elif isinstance(value, (str, bytes)):
            found.update([os.fsdecode(value)] if secret else _secrets_of(os.fsdecode(value)))

    collect(options, False)
    for url in urls:
        found.update(_secrets_of(url))
    return {secret for each in found for secret in (each, unquote(each)) if len(secret) > 3}


def _secrets_of(url: str) -> Iterator[str]:
    for link in Location(url).links:
        values = [pair.partition("=")[2] or pair for pair in re.split("[&?#]", link.query[1:])]
        for secret in (link.user, *link.user.split(":", 1), link.query[1:], *values):
            yield secret
        for secret in (link.user, *values):  # a parser that is confused by one shows a part of it
            yield from re.split("[:@/?#;=]", secret)


def _in_any_writing(secret: str) -> str:
    """A pattern of a secret, however a client, `repr` or JSON has written it."""

    def of(character: str) -> str:
        encoded = "".join(f"%(?:25)*{byte:02x}" for byte in character.encode(errors="surrogateescape"))
        quoted = {character, repr(character)[1:-1], json.dumps(character)[1:-1], f"\\{character}"}
        plus = [r"\+"] if character == " " else []
        return "(?:" + "|".join([*map(re.escape, sorted(quoted, key=len, reverse=True)), encoded, *plus]) + ")"

    return "".join(map(of, secret))
