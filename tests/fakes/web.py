"""A web server of recorded answers, on the loopback: what carbon providers say, and what goes wrong on the way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from .loopback import QuietHandler, listening


@dataclass(frozen=True)
class Asked:
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]


@dataclass
class Answer:
    """`drip_s` between single bytes; `cut` ends the connection before the body is whole."""

    body: str | bytes = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    drip_s: float = 0.0
    delay_s: float = 0.0
    cut: bool = False


Route = Answer | list[Answer] | Callable[[Asked], Answer]


class Web:
    """Answers by path; of a list each in turn, and the last one from then on. `asked` is all that came."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.asked: list[Asked] = []
        self.url = ""
        self.closing = threading.Event()

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        route = self.routes.get(asked.path, Answer("no such page", 404))
        if callable(route):
            return route(asked)
        if isinstance(route, list):
            return route.pop(0) if len(route) > 1 else route[0]
        return route


@contextlib.contextmanager
def serving() -> Iterator[Web]:
    web = Web()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            answer = web.answer(Asked(parts.path, parse_qs(parts.query), dict(self.headers)))
            body = answer.body.encode() if isinstance(answer.body, str) else answer.body
            web.closing.wait(answer.delay_s)
            with contextlib.suppress(OSError):
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body) + (100 if answer.cut else 0)))
                self.end_headers()
                self.drip(body, answer.drip_s)

        def drip(self, body: bytes, drip_s: float) -> None:
            if not drip_s:
                self.wfile.write(body)
                return
            for byte in body:
                if web.closing.wait(drip_s):
                    return
                self.wfile.write(bytes([byte]))
                self.wfile.flush()

    with listening(Handler) as web.url:
        try:
            yield web
        finally:
            web.closing.set()


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.at_s = 1_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.at_s

    def sleep(self, wait_s: float) -> None:
        self.slept.append(wait_s)
        self.at_s += wait_s
