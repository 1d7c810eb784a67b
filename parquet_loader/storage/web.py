"""URLs of the web whose queries and users no error, log or cache of the client shows."""

from __future__ import annotations

import functools
import http.client
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from .secrets import WEB, Link, Location

__all__ = ["WebClient"]


class WebClient:
    """Makes the session of an HTTP filesystem, and adds to each request what its URL was given with.

    So the filesystem, its names, its caches and its logs see public URLs alone.

    Args:
        locations: that are opened, with or without secrets.
    """

    def __init__(self, locations: Iterable[Location]) -> None:
        links = [link for location in locations for link in location.links if link.scheme in WEB]
        self._queries = {link.public.rstrip("/"): link.query for link in links if link.query}
        self._users = {_origin(link.public): link.user for link in links if link.user}
        self._make: Any = None

    def add_to(self, options: Mapping[str, Any], links: Sequence[Link]) -> Mapping[str, Any]:
        """The options of a filesystem, with this where it is needed."""
        for at, link in enumerate(links):
            if link.scheme in WEB and (self._queries or self._users):
                own = options if at == 0 else options.get(link.scheme, {})
                if own.get("get_client") is not self:
                    self._make = own.get("get_client")
                own = {**own, "get_client": self}
                options = own if at == 0 else {**options, link.scheme: own}
        return options

    async def __call__(self, **options: Any) -> Any:
        """A session of aiohttp whose requests are made of whole URLs."""
        if self._make is not None:
            return _Session(await self._make(**options), self._whole)
        from fsspec.implementations.http import get_client

        return _Session(await get_client(**options), self._whole)

    def _whole(self, url: Any) -> Any:
        import yarl

        text = str(url)
        queries = {str(yarl.URL(public)): query for public, query in self._queries.items()}
        query, user = queries.get(text.rstrip("/"), ""), self._users.get(_origin(text), "")
        if not query and not user:
            return url
        if user:
            text = text.replace("://", f"://{re.sub('[/?#]', lambda sign: quote(sign[0], safe=''), user)}@", 1)
        with suppress(ValueError):
            return yarl.URL(text + query)
        raise ValueError(f"what {url} was given with makes no valid URL")


def _origin(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])


class _Session:
    """An aiohttp session whose requests go to whole URLs, and whose errors tell of public ones."""

    def __init__(self, session: Any, whole: Callable[[Any], Any]) -> None:
        self._session = session
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)
        if name not in ("get", "head", "post", "put", "patch", "delete"):
            return found
        return lambda url, **options: _Request(found(self._whole(url), **options), url)


class _Request:
    """A request of aiohttp's, to be awaited or entered, whose errors tell of a public URL."""

    def __init__(self, request: Any, public: Any) -> None:
        self._request = request
        self._public = public
        self._answer: Any = None

    def __await__(self) -> Generator[Any, None, Any]:
        return self._get().__await__()

    async def __aenter__(self) -> Any:
        self._answer = await self._get()
        return await self._answer.__aenter__()

    async def __aexit__(self, *error: Any) -> Any:
        return await self._answer.__aexit__(*error)

    async def _get(self) -> Any:
        import aiohttp

        try:
            answer = await self._request
        except (aiohttp.ClientResponseError, aiohttp.InvalidURL) as error:
            failure = aiohttp.ClientError(f"{type(error).__name__} of {self._public}")
        else:
            answer.raise_for_status = functools.partial(self._check, answer)
            return answer
        raise failure  # out of the except block, so that an error that shows a secret is not its context

    def _check(self, answer: Any) -> None:
        if answer.status >= 400:
            import aiohttp
            import multidict

            asked = aiohttp.RequestInfo(
                self._public, answer.method, multidict.CIMultiDictProxy(multidict.CIMultiDict()), self._public
            )
            reason = http.client.responses.get(answer.status, "")
            raise aiohttp.ClientResponseError(asked, (), status=answer.status, message=reason)
