"""A host's processors and memory by RAPL, as Linux shows it under /sys/class/powercap.

Zones named `package-N` and their subzone `dram` are read. `core` and `uncore` are parts of their package, and `psys`
has the packages in it: none of these is read, so that no joule counts twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from core.ports import HostReading, PermanentError, RetryableError
from core.units import UJ_PER_J

from .joule_counts import CounterTally

ROOT = Path("/sys/class/powercap")
METHOD = "rapl-powercap"

REMEDY = (
    "only root may read it since Linux 5.10: run the Zeus daemon (zeusd) on this machine, or let the agent's group "
    "read the files `energy_uj` by a rule that holds after each start (docs/nodes.md)"
)


class PowercapMeter:
    """`ports.HostMeter`. Reads some files of sysfs, which takes less than a millisecond; not thread-safe.

    A counter that wraps at `max_energy_range_uj` goes on here; one that nobody read for so long that it may have
    wrapped more than once starts again from 0.
    """

    def __init__(self, root: Path = ROOT, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises PermanentError: this machine has no such counters, or this user may not read them."""
        self._clock = clock
        self._zones: dict[str, tuple[Path, CounterTally]] = {}
        for folder in sorted(root.glob("intel-rapl:*")):
            if (name := _domain(folder)) is not None:
                self._zones[name] = (
                    folder / "energy_uj",
                    CounterTally(_number(folder / "max_energy_range_uj") / UJ_PER_J),
                )
        if not self._zones:
            raise PermanentError(f"there is no RAPL counter of a processor under {root}")
        self.read()

    def read(self) -> tuple[HostReading, ...]:
        return tuple(
            HostReading(name, METHOD, time.time(), tally.add(self._clock(), _number(path) / UJ_PER_J))
            for name, (path, tally) in self._zones.items()
        )

    def notices(self) -> tuple[str, ...]:
        return (f"host energy of {', '.join(self._zones)} is metered by RAPL (powercap)",)

    def close(self) -> None:
        """Nothing is open."""


def _domain(folder: Path) -> str | None:
    """Returns the name of a zone that is counted: `package-0`, or `dram-0` of the memory beside it."""
    name = _text(folder / "name")
    if name.startswith("package-"):
        return name
    if name != "dram":
        return None
    package = folder.name.rpartition(":")[0]
    return "dram-" + _text(folder.parent / package / "name").removeprefix("package-")


def _number(path: Path) -> int:
    text = _text(path)
    try:
        return int(text)
    except ValueError:
        raise RetryableError(f"{path} holds '{text[:40]}', which is no number") from None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except PermissionError as error:
        raise PermanentError(f"{path} cannot be read: {REMEDY}") from error
    except OSError as error:
        raise RetryableError(f"{path} cannot be read: {error.strerror or error}") from error
