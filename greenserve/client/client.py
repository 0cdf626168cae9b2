"""The client: REST's resources, each as an attribute."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Self

import httpx2

from .async_resources import AsyncResources
from .calls import Call, Method, Retries
from .paging import PAGE_SIZE, AsyncRows, Rows
from .resources import Resources
from .transport import TIMEOUT_S, AsyncTransport, Transport, new_key

Row = dict[str, Any]


def _call(
    method: Method, path: str, query: Mapping[str, object] | None, body: object, etag: str | None, key: str | None
) -> Call:
    harmless = path.endswith("validate/") or path == "previews/"
    keyed = method == "POST" and not harmless and path != "nodes/join/"
    return Call(method, path, query or {}, body, etag, new_key(key) if keyed else None, harmless)


class Client(Resources):
    """Reads and changes a fleet through the REST API: `client.sites.get("ashburn")`.

    It keeps connections open; `close` it, or use it in a `with`. Threads may share one.

    Args:
        url: of the dashboard, such as `http://127.0.0.1:8000`.
        token: an access token of a person.
        timeout_s: the longest wait for each part of an answer.
        retries: how often a call is tried again.
        inner: what carries the bytes, in place of the network.
        tls: how the server's certificate is checked, where the system's authorities do not know it.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float = TIMEOUT_S,
        retries: Retries | None = None,
        inner: httpx2.BaseTransport | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.transport = Transport(url, token, timeout_s=timeout_s, retries=retries, inner=inner, tls=tls)
        super().__init__(self.transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self.transport.close()

    def call(
        self,
        method: Method,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        etag: str | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Returns the JSON of any request below `/api/v1/`, as plain values; None: the answer has no body.

        For programs that choose resources by name: the typed methods say more. It raises what they raise.
        """
        call = _call(method, path, query, body, etag, idempotency_key)
        answer = self.transport.send(call)
        return self.transport.decoded(call, object, answer) if answer.content else None

    def rows(self, path: str, **filters: object) -> Iterator[Row]:
        """Returns all rows of a list, such as `rows("nodes/", site="ashburn")`, as plain values."""
        return iter(Rows(self.transport, Call("GET", path, {"limit": PAGE_SIZE, **filters}), Row))


class AsyncClient(AsyncResources):
    """The same for asyncio: `await client.sites.get("ashburn")`. See `Client` for the arguments."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float = TIMEOUT_S,
        retries: Retries | None = None,
        inner: httpx2.AsyncBaseTransport | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.transport = AsyncTransport(url, token, timeout_s=timeout_s, retries=retries, inner=inner, tls=tls)
        super().__init__(self.transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self.transport.close()

    async def call(
        self,
        method: Method,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        etag: str | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Returns the JSON of any request below `/api/v1/`, as `Client.call` does."""
        call = _call(method, path, query, body, etag, idempotency_key)
        answer = await self.transport.send(call)
        return self.transport.decoded(call, object, answer) if answer.content else None

    def rows(self, path: str, **filters: object) -> AsyncIterator[Row]:
        """Returns all rows of a list as plain values."""
        return aiter(AsyncRows(self.transport, Call("GET", path, {"limit": PAGE_SIZE, **filters}), Row))
