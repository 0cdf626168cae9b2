"""Asks the predictor's process (`pools.lengths`) how long an answer will be, within a budget, and tells it how it was.

Nothing here blocks the event loop, and nothing fails: without the process, or over the budget, there is no answer, and
the request is classified without one. A process that is late many times in a row is left alone for a second each time,
so that requests do not wait for it in vain.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from core.length_odds import LengthOdds
from core.ports import RequestFeatures
from pools.lengths.messages import Ask, BadFrame, Frames, Lesson, answer_of, cut, frame, shown_of

from ..token_bucket import TokenBucket
from .classified import LESSONS_AT_ONCE, LESSONS_PER_S

log = logging.getLogger(__name__)

BUDGET_S = 0.05
MOST_WAITING = 256  # asks without an answer
MOST_UNSENT_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 1.0
CONNECT_AGAIN_S = 0.5
LATE_IN_A_ROW = 8
PAUSE_S = 1.0


class Asked(NamedTuple):
    """`number`: by which a lesson names the request."""

    number: int
    answer: asyncio.Future[LengthOdds | None]


class LengthAsker:
    """Make it inside a running event loop, and run `keep` as a task; before it has connected nobody is asked.

    Args:
        socket: Where the process listens.
        budget_s: The longest that a request waits.
    """

    def __init__(self, socket: Path, budget_s: float = BUDGET_S) -> None:
        self.answered = self.late = self.refused = self.unread = 0
        self._socket = str(socket)
        self._budget_s = budget_s
        self._lessons = TokenBucket(LESSONS_PER_S, LESSONS_AT_ONCE)
        self._connection: _Connection | None = None
        self._number = 0
        self._late_in_a_row = 0
        self._paused_until_s = 0.0

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def ready(self) -> bool:
        """Says whether it is worth asking now."""
        connection = self._connection
        if connection is None:
            return False
        if connection.full or time.monotonic() < self._paused_until_s:
            self.refused += 1
            return False
        return True

    def ask(
        self,
        service: str,
        features: RequestFeatures,
        prompt_tokens: int,
        texts: Sequence[str],
        borders: tuple[int, ...] = (),
    ) -> Asked | None:
        """Sends the question; its answer is to be had from `answer`. None: it cannot be asked.

        `borders`: of the classes that are decided by, as of LengthOdds: odds that are learned have borders there, too.
        """
        connection = self._connection
        if connection is None or not texts:
            return None
        self._number += 1
        until_s = time.monotonic() + self._budget_s
        tenant, shown = features.tenant_id, shown_of(features)
        try:
            asked = frame(Ask(self._number, until_s, service, tenant, prompt_tokens, cut(texts), shown, borders))
        except ValueError:  # a text that is no Unicode
            return None
        return Asked(self._number, connection.ask(self._number, asked))

    async def answer(self, asked: Asked) -> LengthOdds | None:
        """Returns what the process says; None: nothing, or not within the budget."""
        timer = asyncio.get_running_loop().call_later(self._budget_s, self._give_up, asked)
        try:
            return await asked.answer
        finally:
            timer.cancel()

    def learn(self, number: int, prompt_tokens: int, output_tokens: int) -> None:
        """Tells how long the answer to a request was that was asked about."""
        connection = self._connection
        if connection is not None and not connection.full and self._lessons.take(time.monotonic()):
            connection.send(frame(Lesson(number, prompt_tokens, output_tokens)))

    async def keep(self) -> None:
        """Keeps a connection to the process, which may come, go and come again."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, connection = await loop.create_unix_connection(lambda: _Connection(self._heard), self._socket)
            except (OSError, TimeoutError) as error:
                log.debug("no predictor of lengths at %s: %r", self._socket, error)
            else:
                await self._use(connection)
            await asyncio.sleep(CONNECT_AGAIN_S)

    async def _use(self, connection: _Connection) -> None:
        """Returns when it is lost."""
        log.info("prompts are shown to the predictor of lengths at %s", self._socket)
        self._connection, self._late_in_a_row, self._paused_until_s = connection, 0, 0.0
        try:
            await connection.lost
        finally:
            self._connection = None
            connection.abort()
        log.warning("the predictor of lengths is gone: answers' lengths are predicted without it")

    def _heard(self, unread: bool) -> None:
        self.answered += 1
        self.unread += unread
        self._late_in_a_row = 0

    def _give_up(self, asked: Asked) -> None:
        if asked.answer.done():
            return
        asked.answer.set_result(None)
        self.late += 1
        self._late_in_a_row += 1
        if self._late_in_a_row >= LATE_IN_A_ROW:
            self._paused_until_s = time.monotonic() + PAUSE_S


class _Connection(asyncio.Protocol):
    """A connection to the process. `lost` is done when it is over; whoever waits for an answer then gets none.

    Args:
        heard: Called for each answer that came in time, with whether the encoder was too far behind for it.
    """

    def __init__(self, heard: Callable[[bool], None]) -> None:
        self._heard = heard
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: dict[int, asyncio.Future[LengthOdds | None]] = {}
        self._frames = Frames()

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MOST_WAITING or self._transport.get_write_buffer_size() > MOST_UNSENT_BYTES

    def ask(self, number: int, asked: bytes) -> asyncio.Future[LengthOdds | None]:
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        self.send(asked)
        return answer

    def send(self, data: bytes) -> None:
        if not self._transport.is_closing():  # else `connection_lost` is on its way
            self._transport.write(data)

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_result(None)
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                found = answer_of(body)
                answer = self._waiting.get(found.number)
                if answer is not None and not answer.done():  # else it came too late
                    answer.set_result(found.odds)
                    self._heard(found.unread)
        except BadFrame as error:
            log.warning("the predictor of lengths is let go: %s", error)
            self.abort()
