"""Keeps account of the caches that come from other engines, in slots of one staging memory. Pure, but for its lock.

A transfer is one request's cache. Its sender is granted slots, writes blocks into them, says which, and ends it. A slot
is given to another transfer only when nobody can write into it any more: after the end, or, where the sender was lost
before that, when its network has forgotten what it still had to deliver.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

KEPT_S = 120.0
QUARANTINE_S = 1000.0  # Linux tries to deliver what was sent by TCP for up to 925 s


@dataclass(slots=True)
class _Transfer:
    granted: set[int]
    last_s: float  # when anything was heard of it
    slots: dict[str, int] = field(default_factory=dict)  # of blocks that are here, by their keys
    settled: bool = False  # nothing more comes
    released: bool = False  # nobody needs it any more


class Look(NamedTuple):
    """`slots`: of the keys asked for, as far as all before them are here. `settled`: more will not come."""

    slots: list[int]
    settled: bool
    known: bool


class Arrivals:
    """Knows who may write into which slot, and what is there. For any thread; times are of one clock, in s."""

    def __init__(self, slots: int, kept_s: float = KEPT_S, quarantine_s: float = QUARANTINE_S) -> None:
        self._lock = threading.Lock()
        self._slots = slots
        self._free = list(range(slots))
        self._kept_s, self._quarantine_s = kept_s, quarantine_s
        self._transfers: dict[str, _Transfer] = {}
        self._quarantine: list[tuple[float, set[int]]] = []  # until when

    @property
    def free(self) -> int:
        """Returns how many slots can be granted."""
        with self._lock:
            return len(self._free)

    def open(self, transfer: str, blocks: int, now_s: float) -> list[int]:
        """Begins a transfer. Returns the slots that it may fill: `blocks`, or as many as there are."""
        with self._lock:
            self._sweep(now_s)
            if transfer in self._transfers:
                raise ValueError(f"transfer {transfer} is open already")
            count = max(0, min(blocks, len(self._free)))
            granted, self._free = self._free[:count], self._free[count:]
            self._transfers[transfer] = _Transfer(set(granted), now_s)
            return granted

    def written(self, transfer: str, blocks: Iterable[tuple[str, int]], now_s: float) -> None:
        """Notes that blocks lie in slots. Raises ValueError: a slot is not one that was granted for it."""
        with self._lock:
            found = self._transfers.get(transfer)
            if found is None or found.settled:
                return
            found.last_s = now_s
            for key, slot in blocks:
                if slot not in found.granted:
                    raise ValueError(f"slot {slot} is not one of transfer {transfer}")
                found.granted.discard(slot)
                if key in found.slots:
                    self._free.append(slot)
                else:
                    found.slots[key] = slot

    def end(self, transfer: str, now_s: float) -> None:
        """Gives slots back that its sender did not use, and will not."""
        with self._lock:
            found = self._transfers.get(transfer)
            if found is not None and not found.settled:
                self._free += found.granted
                self._settle(transfer, found, now_s)

    def lost(self, transfers: Iterable[str], now_s: float) -> None:
        """Waits with the slots of a sender that is gone, since what it was writing may still come."""
        with self._lock:
            for transfer in transfers:
                self._lose(transfer, now_s)

    def look(self, transfer: str, keys: Sequence[str]) -> Look:
        with self._lock:
            found = self._transfers.get(transfer)
            if found is None:
                return Look([], True, known=False)
            slots: list[int] = []
            for key in keys:
                if (slot := found.slots.get(key)) is None:
                    break
                slots.append(slot)
            return Look(slots, found.settled, known=True)

    def release(self, transfer: str) -> None:
        """Nobody needs its blocks any more."""
        with self._lock:
            found = self._transfers.get(transfer)
            if found is not None:
                found.released = True
                self._drop(transfer, found)

    def _lose(self, transfer: str, now_s: float) -> None:
        found = self._transfers.get(transfer)
        if found is not None and not found.settled:
            if found.granted:
                self._quarantine.append((now_s + self._quarantine_s, found.granted))
            self._settle(transfer, found, now_s)

    def _settle(self, transfer: str, found: _Transfer, now_s: float) -> None:
        found.granted = set()
        found.settled, found.last_s = True, now_s
        self._drop(transfer, found)

    def _drop(self, transfer: str, found: _Transfer) -> None:
        if found.released:
            self._free += found.slots.values()
            found.slots = {}
            if found.settled:
                del self._transfers[transfer]

    def _sweep(self, now_s: float) -> None:
        """Drops transfers that nobody fetched, or of which nothing was heard; ends quarantines."""
        for transfer, found in list(self._transfers.items()):
            if now_s - found.last_s > self._kept_s:
                found.released = True
                self._lose(transfer, now_s)
                if transfer in self._transfers:
                    self._drop(transfer, found)
        over = [slots for until_s, slots in self._quarantine if until_s <= now_s]
        self._quarantine = [item for item in self._quarantine if item[0] > now_s]
        for slots in over:
            self._free += slots
