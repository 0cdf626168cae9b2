"""Has a trained encoder read prompts beside the event loop: in batches, and those alone that it gets to in time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from core.length_odds import LengthOdds
from core.ports import AdapterError, LengthProxyModel

log = logging.getLogger(__name__)

MOST_TOGETHER = 16  # prompts of a batch
START_S = 0.005  # that a prompt takes, until it was measured
SENDING_S = 0.002  # that remain of a budget for the answer's way back
_WEIGHT = 0.2  # of the newest batch in what a prompt takes
_RECOVERY = 0.99  # of what a prompt is believed to take, with each that is turned away: a bad minute passes


class Then(Protocol):
    """Called once with the odds of an answer's length, None if the model says none of it.

    `unread`: the encoder was behind, and the prompt was not shown to it.
    """

    def __call__(self, odds: LengthOdds | None, unread: bool) -> None: ...


class _Waiting(NamedTuple):
    service: str
    prompt: str
    until_s: float
    then: Then


class Reader:
    """A queue before a trained model, which reads in a thread. To be used in one running event loop.

    A prompt is turned away as soon as it is clear that its turn would come too late, so that there is time left to
    predict without the model. What a prompt takes is measured, as a mean over the newest batches.

    Args:
        clock: Monotonic seconds, those of the prompts' `until_s`.
    """

    def __init__(self, model: LengthProxyModel, clock: Callable[[], float] = time.monotonic) -> None:
        self._model, self._clock = model, clock
        self._waiting: deque[_Waiting] = deque()
        self._each_s = START_S
        self._ends_s = 0.0  # when the batch that is being read should be done
        self._task: asyncio.Task[None] | None = None  # None: nothing is read

    def serves(self, service: str) -> bool:
        """Says whether the model may have odds for a service."""
        return self._model.serves(service)

    def read(self, service: str, prompt: str, until_s: float, then: Then) -> None:
        """Has a prompt read until a time, after which nobody waits for its odds; `then` may be called at once."""
        turn_s = self._free_s() + (len(self._waiting) + 1) * self._each_s
        if turn_s > until_s - SENDING_S:
            if self._task is None:
                self._each_s *= _RECOVERY
            then(None, unread=True)
            return
        self._waiting.append(_Waiting(service, prompt, until_s, then))
        if self._task is None:
            # It begins when all that waits in sockets has been taken, which is read together.
            self._ends_s = self._clock()
            self._task = asyncio.get_running_loop().create_task(self._work())

    def _free_s(self) -> float:
        """Returns when the batch that is being read is done: one that is over its time may take as long again."""
        now_s = self._clock()
        return now_s if self._task is None else now_s + abs(self._ends_s - now_s)

    async def _work(self) -> None:
        try:
            while self._waiting:
                if batch := self._next():
                    for waiting, odds in zip(batch, await self._odds(batch), strict=True):
                        waiting.then(odds, unread=False)
        finally:
            self._task = None

    def _next(self) -> list[_Waiting]:
        """Takes the next batch: as many as are read before the budget of any of them is over."""
        batch: list[_Waiting] = []
        now_s, until_s = self._clock() + SENDING_S, float("inf")
        while self._waiting and len(batch) < MOST_TOGETHER:
            ends_s = now_s + (len(batch) + 1) * self._each_s
            until_s = min(until_s, self._waiting[0].until_s)
            if ends_s > until_s:
                if not batch:  # batches before took longer than they should have
                    self._waiting.popleft().then(None, unread=True)
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _odds(self, batch: Sequence[_Waiting]) -> Sequence[LengthOdds | None]:
        begun_s = self._clock()
        self._ends_s = begun_s + len(batch) * self._each_s
        services, prompts = [one.service for one in batch], [one.prompt for one in batch]
        try:
            found = await asyncio.to_thread(self._model.predict, services, prompts)
        except AdapterError as error:
            log.warning("the encoder fails, and lengths are predicted without it: %s", error)
        except Exception:
            log.exception("the encoder fails in a way that it should not")
        else:
            self._each_s += _WEIGHT * ((self._clock() - begun_s) / len(batch) - self._each_s)
            return found
        return [None] * len(batch)
