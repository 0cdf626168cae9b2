"""Calls into a driver in a thread of their own: who calls waits for so long and no longer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from core.ports import RetryableError

T = TypeVar("T")


@dataclass(slots=True)
class _Call:
    action: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None


class BoundedCaller:
    """One thread, one call at a time. A call that takes too long goes on; until it ends, others are refused at once.

    So a driver that hangs costs its caller one time-out a call and one thread in all. The thread is a daemon's: it does
    not keep the process from ending.
    """

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._stuck: tuple[_Call, float] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, action: Callable[[], T]) -> T:
        """Returns or raises what `action` does.

        Raises RetryableError when it takes too long, or another one still does.
        """
        if self._stuck is not None:
            stuck, since_s = self._stuck
            if not stuck.done.is_set():
                raise RetryableError(f"{self._name} has not answered for {time.monotonic() - since_s:.0f} s")
            self._stuck = None
        call, began_s = _Call(action), time.monotonic()
        self._calls.put(call)
        if not call.done.wait(self._timeout_s):
            self._stuck = call, began_s
            raise RetryableError(f"{self._name} did not answer within {self._timeout_s:g} s")
        if call.error is not None:
            raise call.error
        return cast(T, call.result)

    def end(self) -> None:
        """Lets the thread end after what it does now."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call.result = call.action()
            except BaseException as error:  # raised again where it was called
                call.error = error
            call.done.set()
