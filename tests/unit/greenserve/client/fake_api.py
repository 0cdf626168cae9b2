"""A server of a few planned answers, which keeps what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2

from greenserve.client import Retries
from greenserve.client.transport import AsyncTransport, Transport

URL = "http://greenserve.test"
TOKEN = "gs-secret-token"
Planned = httpx2.Response | Exception


def answer(status: int = 200, body: Any = None, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, json=body, headers=named)


def problem(status: int, kind: str, detail: str = "no", **more: Any) -> httpx2.Response:
    about = {"title": "t", "status": status, "detail": detail, "instance": "/api/v1/sites/", "request_id": "r1"}
    headers = {"Content-Type": "application/problem+json"}
    if "retry_after" in more:
        headers["Retry-After"] = more.pop("retry_after")
    body = {"type": f"urn:greenserve:problem:{kind}", **about, **more}
    return httpx2.Response(status, content=json.dumps(body), headers=headers)


class FakeApi:
    """Gives the planned answers in turn; the last one again and again."""

    def __init__(self, *planned: Planned) -> None:
        self.planned, self.requests, self.waits_s = list(planned), list[httpx2.Request](), list[float]()

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        found = self.planned.pop(0) if len(self.planned) > 1 else self.planned[0]
        if isinstance(found, Exception):
            raise found
        return httpx2.Response(found.status_code, headers=found.headers, content=found.content)

    async def handle_later(self, request: httpx2.Request) -> httpx2.Response:
        return self.handle(request)

    def transport(self, retries: Retries | None = None) -> Transport:
        made = Transport(URL, TOKEN, retries=retries, inner=httpx2.MockTransport(self.handle))
        made.sleep = self.waits_s.append
        return made

    def async_transport(self, retries: Retries | None = None) -> AsyncTransport:
        made = AsyncTransport(URL, TOKEN, retries=retries, inner=httpx2.MockTransport(self.handle_later))

        async def sleep(seconds: float) -> None:
            self.waits_s.append(seconds)

        made.sleep = sleep
        return made


def by_query(name: str, answers: dict[str | None, Any]) -> Callable[[httpx2.Request], httpx2.Response]:
    """Returns a handler that answers by one parameter of the query."""
    return lambda request: httpx2.Response(200, json=answers[request.url.params.get(name)])
