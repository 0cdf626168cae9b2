"""Serves the gateways of a host over a Unix socket that only their account can reach."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import time
from functools import partial
from pathlib import Path
from typing import Any, cast

from core.length_odds import LengthOdds

from .kept_state import KeptState
from .messages import Answer, Ask, BadFrame, Frames, frame, request_of
from .predicting import Predicting, TextPredictor

log = logging.getLogger(__name__)

KEEP_S = 60.0  # between two writes of what has been learned
LOOK_S = 2.0  # between two looks whether an earlier state was put in its place
TOGETHER_S = 0.002  # answers to asks that came together wait for each other so long
MOST_UNREAD_BYTES = 1 << 20  # of answers, after which a gateway that does not read is let go


class LengthServer:
    """Make it, and then `serve` until it is to end."""

    def __init__(self, socket: Path, predicting: Predicting, kept: KeptState[Any], keep_s: float = KEEP_S) -> None:
        """Serves `predicting`; `kept` makes what it learns with (a TextPredictor)."""
        self._socket = socket
        self._predicting = predicting
        self._kept = kept
        self._keep_s = keep_s
        self._written = 0  # lessons that the file has

    async def serve(self, stop: asyncio.Event) -> None:
        """Serves until `stop`, and keeps what was learned. Raises OSError when it cannot listen."""
        self._socket.unlink(missing_ok=True)  # of one that was killed
        before = os.umask(0o177)
        try:
            loop = asyncio.get_running_loop()
            listening = await loop.create_unix_server(lambda: _Gateway(self._predicting), str(self._socket))
        finally:
            os.umask(before)
        try:
            kept_s = time.monotonic()
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), min(LOOK_S, self._keep_s))
                await self._go_back()
                if stop.is_set() or time.monotonic() >= kept_s + self._keep_s:
                    await self._keep()
                    kept_s = time.monotonic()
        finally:
            listening.close()
            self._socket.unlink(missing_ok=True)

    async def _go_back(self) -> None:
        """Goes on with what was put in the place of the file (`greenserve predictor rollback --learned`)."""
        if not self._kept.replaced:
            return
        found: TextPredictor | None = await asyncio.to_thread(self._kept.newest)
        if found is not None:
            self._predicting.go_on_with(found)
            self._written = self._predicting.lessons
            log.warning("an earlier state was put in the place of what was learned, and is gone on with")

    async def _keep(self) -> None:
        """Writes what is new beside the loop. A disk that fails is logged, no more."""
        lessons = self._predicting.lessons
        if lessons == self._written:
            return
        try:
            if await asyncio.to_thread(self._kept.write, self._predicting.state()):
                self._written = lessons
        except (OSError, ValueError) as error:
            log.warning("what was learned cannot be kept: %s", error)


class _Gateway(asyncio.Protocol):
    """One gateway's connection: requests are answered at once, or when the encoder has read their prompts."""

    def __init__(self, predicting: Predicting) -> None:
        self._predicting = predicting
        self._frames = Frames()
        self._answers: list[bytes] = []  # that are sent together
        self._first_s = 0.0  # when the first of them was there, monotonic

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._predicting.forget(id(self))

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._take(body)
        except BadFrame as error:
            log.warning("a gateway is let go: %s", error)
            self._transport.abort()

    def _take(self, body: bytes) -> None:
        """Raises BadFrame."""
        request = request_of(body)
        if not isinstance(request, Ask):
            self._predicting.learn(id(self), request)
        elif time.monotonic() < request.until_s:  # else work on it would make the next ones late, too
            self._predicting.ask(id(self), request, partial(self._answer, request.number))

    def _answer(self, number: int, odds: LengthOdds | None, unread: bool) -> None:
        now_s = time.monotonic()
        if not self._answers:
            self._first_s = now_s
            asyncio.get_running_loop().call_soon(self._send)
        self._answers.append(frame(Answer(number, odds, unread)))
        if now_s > self._first_s + TOGETHER_S:
            self._send()

    def _send(self) -> None:
        """Sends the answers that are there."""
        answers, self._answers = b"".join(self._answers), []
        if not answers or self._transport.is_closing():
            return
        self._transport.write(answers)
        if self._transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
            log.warning("a gateway is let go: it does not read its answers")
            self._transport.abort()


def make_private(folder: Path) -> None:
    """Makes the folder, for this account alone. Raises OSError when it is not, or belongs to somebody else."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is not a folder of this account: move it away")
    folder.chmod(0o700)
