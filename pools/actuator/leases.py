"""Keeps who has locked which clock until when, and a file of it for the actuator that starts after one was killed."""

from __future__ import annotations

import logging
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from core.ports import LONGEST_LEASE_S, AdapterError, PermanentError, RetryableError

from .actuator_protocol import ClockLease
from .nvml_clocks import ClockSetter

logger = logging.getLogger(__name__)

SET_S = 30.0  # a locked clock is set again after this: somebody else may have reset it
AGAIN_S = 1.0  # a clock that could not be given back is tried again after this
_MOST_GPUS = 64
_NOBODY = -1  # owns what a killed actuator left


class Journal:
    """The GPUs whose clocks may be locked, on disk before the first lock is set. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[str, ...]:
        """Raises ValueError when the file cannot be understood."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return ()
        try:
            return tuple(msgspec.json.decode(data, type=list[str]))
        except msgspec.DecodeError as error:
            raise ValueError(f"{self._path} does not hold a list of GPUs ({error})") from error

    def write(self, gpus: Iterable[str]) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(sorted(gpus)))
        os.replace(temporary, self._path)


@dataclass(slots=True)
class _Lease:
    owner: int  # its connection
    pid: int
    mhz: float | None  # None: not known, or not yet set
    until_s: float
    set_s: float  # when the driver last set it
    retry_s: float = 0.0  # not before this, after a failure


class Leases:
    """All times are monotonic seconds. Raises AdapterError; what was done until then stays, under its lease.

    A lease belongs to a connection and ends with it. Another one may take it over only when it is of the same process,
    which has then lost the first.
    """

    def __init__(self, clocks: ClockSetter, journal: Journal) -> None:
        self._clocks = clocks
        self._journal = journal
        self._leases: dict[str, _Lease] = {}

    def lock(self, owner: int, pid: int, gpus: Sequence[str], mhz: float, lease_s: float, now_s: float) -> float:
        """Locks, or renews; returns the lease that was given, in seconds."""
        if not (math.isfinite(lease_s) and lease_s > 0.0):
            raise PermanentError(f"lease_s is {lease_s:g}; it must be above 0")
        self._check(owner, pid, gpus)
        targets = {gpu: self._nearest(gpu, mhz) for gpu in gpus}
        given_s = min(lease_s, LONGEST_LEASE_S)
        self._write({*self._leases, *gpus})
        for gpu, target_mhz in targets.items():
            before, set_s = self._leases.get(gpu), now_s
            if before is not None and before.mhz == target_mhz and now_s < min(before.until_s, before.set_s + SET_S):
                set_s = before.set_s
            else:
                # Noted first: a driver that sets the clock and then fails leaves something to give back.
                self._leases[gpu] = _Lease(owner, pid, None, now_s + given_s, now_s)
                self._clocks.set(gpu, target_mhz)
            self._leases[gpu] = _Lease(owner, pid, target_mhz, now_s + given_s, set_s)
        return given_s

    def reset(self, owner: int, pid: int, gpus: Sequence[str], now_s: float) -> None:
        """Gives clocks back. Those that nobody has locked are left as they are."""
        self._check(owner, pid, gpus)
        for gpu in gpus:
            self._clocks.offered(gpu)  # refuses a name that is none
        for gpu in gpus:
            if gpu in self._leases:
                self._clocks.reset(gpu)
                del self._leases[gpu]
        self._write(self._leases)

    def leave(self, owner: int, now_s: float) -> None:
        """The connection is gone: its leases are over."""
        for lease in self._leases.values():
            if lease.owner == owner:
                lease.until_s = now_s
        self.lapse(now_s)

    def lapse(self, now_s: float) -> bool:
        """Gives back the clocks whose lease is over; those that fail are tried again. Says whether all could be."""
        over = [gpu for gpu, lease in self._leases.items() if max(lease.until_s, lease.retry_s) <= now_s]
        for gpu in over:
            try:
                self._clocks.reset(gpu)
            except AdapterError as error:
                logger.error("%s; it is tried again", error)
                self._leases[gpu].retry_s = now_s + AGAIN_S
                continue
            logger.info("the clock of %s is back at its default", gpu)
            del self._leases[gpu]
        left = [gpu for gpu in over if gpu in self._leases]
        if len(left) < len(over):
            try:
                self._write(self._leases)
            except AdapterError as error:
                logger.error("%s", error)  # a name too many in the file does no harm
        return not left

    def wait_s(self, now_s: float) -> float | None:
        """Until `lapse` has something to do; None: no clock is locked."""
        times = [max(lease.until_s, lease.retry_s) for lease in self._leases.values()]
        return max(0.0, min(times) - now_s) if times else None

    def end(self, now_s: float) -> bool:
        """Ends all leases. Says whether all clocks could be given back."""
        for lease in self._leases.values():
            lease.until_s, lease.retry_s = now_s, 0.0
        return self.lapse(now_s)

    def recover(self, everything: Callable[[], Sequence[str]], now_s: float) -> None:
        """Gives back what a killed actuator left locked; `everything` when its file is damaged."""
        try:
            gpus = self._journal.read()
        except (OSError, ValueError) as error:
            logger.warning("%s; the clocks of all GPUs are reset", error)
            try:
                gpus = tuple(everything())
            except AdapterError as fault:
                logger.error("%s: no clock can be reset", fault)
                gpus = ()
        for gpu in gpus:
            self._leases[gpu] = _Lease(_NOBODY, 0, None, now_s, now_s)
        self.lapse(now_s)

    def held(self, now_s: float) -> list[ClockLease]:
        return [ClockLease(gpu, lease.mhz, lease.until_s - now_s, lease.pid) for gpu, lease in self._leases.items()]

    def _nearest(self, gpu: str, mhz: float) -> float:
        """The nearest clock offered at or above `mhz`: what is asked for is what latencies need."""
        clocks = self._clocks.offered(gpu)
        if not clocks or not clocks[0] <= mhz <= clocks[-1]:
            known = f"clocks from {clocks[0]:g} to {clocks[-1]:g} MHz" if clocks else "no clocks"
            raise PermanentError(f"{gpu} offers {known}, not {mhz:g} MHz")
        return clocks[bisect_left(clocks, mhz)]

    def _check(self, owner: int, pid: int, gpus: Sequence[str]) -> None:
        if not 1 <= len(gpus) <= _MOST_GPUS:
            raise PermanentError(f"gpus names {len(gpus)} GPUs; from 1 to {_MOST_GPUS} at once")
        for gpu in gpus:
            lease = self._leases.get(gpu)
            if lease is not None and lease.owner not in (owner, _NOBODY) and (lease.pid != pid or pid == 0):
                raise RetryableError(f"the clock of {gpu} is locked by process {lease.pid}")

    def _write(self, gpus: Iterable[str]) -> None:
        try:
            self._journal.write(gpus)
        except OSError as error:
            raise RetryableError(f"the actuator cannot write its state file: {error}") from error
