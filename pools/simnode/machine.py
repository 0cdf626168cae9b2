"""The power of a simulated machine: it runs, is off, or starts. While it does not run there are no engines."""

from __future__ import annotations

import time
from collections.abc import Callable

BOOT_S = 300.0  # what a server with eight GPUs takes, its memory test included, until its agent reports


class Machine:
    """`boot_s`: from being switched on until it runs. It runs when this begins. `now_s` is monotonic."""

    def __init__(self, boot_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._boot_s, self._now_s = boot_s, now_s
        self._runs_from_s: float | None = 0.0  # None: it is off

    @property
    def on(self) -> bool:
        """Says whether it has power, as its BMC would: also while it starts."""
        return self._runs_from_s is not None

    @property
    def runs(self) -> bool:
        return self._runs_from_s is not None and self._now_s() >= self._runs_from_s

    def switch_on(self) -> None:
        if not self.on:
            self._runs_from_s = self._now_s() + self._boot_s

    def switch_off(self) -> None:
        self._runs_from_s = None
