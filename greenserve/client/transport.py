"""Sends calls over HTTP: with time limits, tries again what may be tried again, and raises what the API calls wrong."""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx2

from . import codec
from .calls import Answer, Call, Retries, Upload, query_of
from .errors import NoAnswerError, UnexpectedAnswerError, problem_of

T = TypeVar("T")
TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


class _Sending:
    """A transport of either kind, without its sending: the address, the token, the limits."""

    def __init__(self, url: str, token: str, timeout_s: float, retries: Retries) -> None:
        address = httpx2.URL(url)
        if address.scheme not in ("http", "https") or not address.host:
            raise ValueError(f"{url!r} is no address; give one such as http://127.0.0.1:8000")
        if timeout_s <= 0:
            raise ValueError("timeout_s is more than 0")
        self.root = f"{url.rstrip('/')}/api/v1/"
        self.retries = retries
        self._dice = random.Random()
        self._token = token
        self._timeout = httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"  # and not the token

    def _request(self, call: Call) -> dict[str, Any]:
        """Returns httpx2's arguments; the same for each attempt, so that a form has the same bytes."""
        headers = {"Authorization": f"Bearer {self._token}", "Accept": call.accept, "User-Agent": "greenserve-client"}
        headers |= {"If-Match": call.etag} if call.etag is not None else {}
        headers |= {"Idempotency-Key": call.key} if call.key is not None else {}
        found: dict[str, Any] = {
            "method": call.method,
            "url": self.root + call.path,
            "params": query_of(call.query),
            "headers": headers,
        }
        if isinstance(call.body, Upload):
            texts = {name: codec.encode(value).decode() for name, value in call.body.texts.items()}
            return {**found, "data": texts, "files": {call.body.name: (call.body.name, call.body.content)}}
        if call.body is not None:
            found["content"] = codec.encode(call.body)
            headers["Content-Type"] = "application/json"
        return found

    def _next(self, call: Call, attempt: int, outcome: Answer | NoAnswerError) -> float | None:
        return self.retries.wait_s(call, attempt, outcome, self._dice)

    def _final(self, call: Call, outcome: Answer | NoAnswerError) -> Answer:
        if isinstance(outcome, NoAnswerError):
            raise outcome
        if 200 <= outcome.status < 300:
            return outcome
        where = f"{call.method} {self.root}{call.path}"
        if 300 <= outcome.status < 400:
            words = f"{where} answers {outcome.status}: it stands elsewhere. Give the address that answers itself."
            raise UnexpectedAnswerError(words, status=outcome.status)
        raise problem_of(outcome.status, outcome.content, outcome.retry_after_s, where)

    def _no_answer(self, call: Call, error: Exception) -> NoAnswerError:
        words = f"{call.method} {self.root}{call.path} has no answer: {error or type(error).__name__}"
        return NoAnswerError(words, sent=not isinstance(error, NOT_SENT))

    def decoded(self, call: Call, kind: type[T], answer: Answer) -> T:
        return codec.decode(kind, answer, f"{call.method} {self.root}{call.path}")


class Transport(_Sending):
    """Sends calls and waits for their answers; may be shared by threads.

    Args:
        url: of the dashboard, such as `http://127.0.0.1:8000`.
        token: an access token of a person.
        timeout_s: the longest wait for each part of an answer.
        retries: how often a call is tried again.
        inner: what carries the bytes, in place of the network: for tests, or for a proxy of one's own.
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
        super().__init__(url, token, timeout_s, retries or Retries())
        self._http = httpx2.Client(timeout=self._timeout, transport=inner, verify=tls or True)
        self.sleep: Callable[[float], None] = time.sleep

    def close(self) -> None:
        self._http.close()

    def send(self, call: Call) -> Answer:
        """Returns the answer, of 200 to 299.

        Raises:
            ProblemError: what the API says is wrong, in the class for its type.
            NoAnswerError: no connection, or no answer in time.
            UnexpectedAnswerError: something else than GreenServe's API answers.
            ValueError: a time without a zone, or a body that JSON cannot hold.
        """
        request = self._request(call)
        for attempt in itertools.count(1):
            outcome = self._once(call, request)
            wait_s = self._next(call, attempt, outcome)
            if wait_s is None:
                break
            self.sleep(wait_s)
        return self._final(call, outcome)

    def read(self, call: Call, kind: type[T]) -> T:
        """Returns the answer's value; raises as `send` does."""
        return self.decoded(call, kind, self.send(call))

    def _once(self, call: Call, request: dict[str, Any]) -> Answer | NoAnswerError:
        try:
            got = self._http.request(**request)
        except httpx2.RequestError as error:
            return self._no_answer(call, error)
        return Answer(got.status_code, got.headers, got.content)


class AsyncTransport(_Sending):
    """The same for asyncio. See `Transport` for the arguments."""

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
        super().__init__(url, token, timeout_s, retries or Retries())
        self._http = httpx2.AsyncClient(timeout=self._timeout, transport=inner, verify=tls or True)
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, call: Call) -> Answer:
        """Returns the answer, of 200 to 299; raises as `Transport.send` does."""
        request = self._request(call)
        for attempt in itertools.count(1):
            outcome = await self._once(call, request)
            wait_s = self._next(call, attempt, outcome)
            if wait_s is None:
                break
            await self.sleep(wait_s)
        return self._final(call, outcome)

    async def read(self, call: Call, kind: type[T]) -> T:
        """Returns the answer's value; raises as `send` does."""
        return self.decoded(call, kind, await self.send(call))

    async def _once(self, call: Call, request: dict[str, Any]) -> Answer | NoAnswerError:
        try:
            got = await self._http.request(**request)
        except httpx2.RequestError as error:
            return self._no_answer(call, error)
        return Answer(got.status_code, got.headers, got.content)


def new_key(given: str | None) -> str:
    """Returns the Idempotency-Key that was given, or one that no other request has."""
    return given or uuid.uuid4().hex
