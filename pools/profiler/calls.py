"""Blocking calls of the ports from the event loop: one after the other, in one thread.

Adapters are not safe for more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Calls:
    """Use as a context manager. A call goes on to its end when who awaits it is cancelled; the next waits for it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ports")

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._thread.submit(call, *args, **kwargs))
