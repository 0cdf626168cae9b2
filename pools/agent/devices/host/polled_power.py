"""Meters of a whole node, or of a part that has no counter: a baseboard controller that is asked, a declared constant.

A baseboard controller takes a second or so to answer, which a tick has not: it is asked in a thread of its own, and
its power is integrated.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from core.ports import AdapterError, HostReading, PermanentError

from .joule_counts import PowerTally

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
SLOW_S = 60.0  # between tries after a fault that another try will not mend
LONGEST_GAP_S = 30.0  # between powers: over a longer one the energy is not known
WHOLE_NODE = "node"


class PolledPowerMeter:
    """`ports.HostMeter` of a whole node. `ask` gives watts, blocks for as long as it likes, and raises AdapterError.

    `read` never blocks: it gives what the thread learned last, and raises what went wrong in its last try.
    """

    def __init__(self, method: str, ask: Callable[[], float], said: str, period_s: float = PERIOD_S) -> None:
        self._method = method
        self._ask = ask
        self._said = said
        self._period_s = period_s
        self._tally = PowerTally(LONGEST_GAP_S)
        self._found: HostReading | AdapterError | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"host power by {method}", daemon=True)
        self._thread.start()

    def read(self) -> tuple[HostReading, ...]:
        found = self._found
        if isinstance(found, AdapterError):
            raise found
        return () if found is None else (found,)

    def notices(self) -> tuple[str, ...]:
        return (self._said,)

    def close(self) -> None:
        """Lets the thread end after what it asks now."""
        self._ending.set()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._ending.wait(wait_s):
            wait_s = self._period_s
            began_s = time.monotonic()
            try:
                power_w = self._ask()
                energy_j = self._tally.add(time.monotonic(), power_w)
                self._found = HostReading(WHOLE_NODE, self._method, time.time(), energy_j, power_w, whole_node=True)
                wait_s = max(0.0, self._period_s - (time.monotonic() - began_s))
            except PermanentError as error:
                self._found, wait_s = error, SLOW_S
            except AdapterError as error:
                self._found = error
            except Exception as error:  # a thread that dies would leave its last figure standing
                logger.exception("asking the node's power failed")
                self._found = AdapterError(f"asking the node's power failed: {error}")


class DeclaredPowerMeter:
    """`ports.HostMeter` of what nobody meters: a constant that the operator declared, under the name that they gave."""

    def __init__(self, name: str, power_w: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._power_w = power_w
        self._clock = clock
        self._tally = PowerTally(LONGEST_GAP_S)

    @classmethod
    def parse(cls, text: str) -> DeclaredPowerMeter:
        """Reads `NAME:WATTS`. Raises ValueError."""
        name, _, watts = text.rpartition(":")
        try:
            power_w = float(watts)
        except ValueError:
            power_w = -1.0
        if not name.strip() or len(name) > 40 or not 0.0 < power_w <= 20_000.0:
            raise ValueError(f"'{text}' is not NAME:WATTS, with a name of at most 40 letters and 1 to 20000 watts")
        return cls(name.strip(), power_w)

    def read(self) -> tuple[HostReading, ...]:
        energy_j = self._tally.add(self._clock(), self._power_w)
        return (HostReading(self._name, "declared", time.time(), energy_j, self._power_w),)

    def notices(self) -> tuple[str, ...]:
        return (f"host energy of {self._name} is declared, not measured: {self._power_w:g} W",)

    def close(self) -> None:
        """Nothing is open."""
