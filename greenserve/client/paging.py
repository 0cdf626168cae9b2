"""Lists of any length: their rows come page by page, as they are asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast
from urllib.parse import parse_qs, urlsplit

import msgspec

from .calls import Call
from .errors import UnexpectedAnswerError
from .transport import AsyncTransport, Transport

T = TypeVar("T")
PAGE_SIZE = 500  # the most that the API gives at a time


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page as the API gives it; `next` and `previous` are links, None at the ends."""

    next: str | None
    previous: str | None
    results: tuple[T, ...]


class Rows(Generic[T]):
    """The rows of a list. Iterate over it: each iteration reads anew, a page at a time."""

    def __init__(self, transport: Transport, call: Call, row: type[T]) -> None:
        self._transport, self._call, self._kind = transport, call, page_of(row)

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            yield from page.results

    def pages(self) -> Iterator[Page[T]]:
        call: Call | None = self._call
        while call is not None:
            page = self._transport.read(call, self._kind)
            yield page
            call = following(call, page.next)

    def first(self) -> T | None:
        """Returns the first row; None: there is none. It asks for this one alone."""
        return next(iter(self._transport.read(only_one(self._call), self._kind).results), None)


class AsyncRows(Generic[T]):
    """The rows of a list, for `async for`."""

    def __init__(self, transport: AsyncTransport, call: Call, row: type[T]) -> None:
        self._transport, self._call, self._kind = transport, call, page_of(row)

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for row in page.results:
                yield row

    async def pages(self) -> AsyncIterator[Page[T]]:
        call: Call | None = self._call
        while call is not None:
            page = await self._transport.read(call, self._kind)
            yield page
            call = following(call, page.next)

    async def first(self) -> T | None:
        """Returns the first row; None: there is none. It asks for this one alone."""
        return next(iter((await self._transport.read(only_one(self._call), self._kind)).results), None)


def page_of(row: type[T]) -> type[Page[T]]:
    generic: Any = Page
    return cast("type[Page[T]]", generic[row])


def only_one(call: Call) -> Call:
    return replace(call, query={**call.query, "limit": 1}) if "limit" in call.query else call


def following(call: Call, link: str | None) -> Call | None:
    """Returns the call for the page that a link leads to; None: there is none.

    Only the link's cursor is taken. So the token goes nowhere but to the address that the client was given, whatever
    name the server has behind a proxy.
    """
    if link is None:
        return None
    cursor = parse_qs(urlsplit(link).query).get("cursor", [""])[0]
    if not cursor or cursor == call.query.get("cursor"):
        raise UnexpectedAnswerError(f"{call.path} has a next page that leads nowhere: {link}", status=200)
    return replace(call, query={**call.query, "cursor": cursor})
