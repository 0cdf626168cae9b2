"""A mover of KV caches within one process: staging memories are byte arrays, and a write is over when it is let go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pools.vllm_scheduler.transfer.mover import MoveFailed, Staging

MEMORIES: dict[int, bytearray] = {}


def memory(slots: int, slot_bytes: int) -> Staging:
    """Makes a staging memory with an address that no other has."""
    address = 1 + len(MEMORIES)
    MEMORIES[address] = bytearray(slots * slot_bytes)
    return Staging(address, slots, slot_bytes)


def slot_of(staging: Staging, slot: int) -> memoryview:
    start = slot * staging.slot_bytes
    return memoryview(MEMORIES[staging.address])[start : start + staging.slot_bytes]


@dataclass(slots=True)
class FakeWrite:
    slots: list[int]
    address: int
    there: list[int]


class FakeMover:
    """`fails`: writes end with an error. `held`: they do not end."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self.fails = self.held = False
        self.writes: list[list[int]] = []  # slots of each
        self.parted: list[str] = []
        self.expected = 0  # transfers

    def expect(self, more: int) -> None:
        self.expected += more

    def metadata(self) -> bytes:
        return b"\x00fake"

    def meet(self, metadata: bytes) -> str:
        if metadata != b"\x00fake":
            raise MoveFailed("no metadata of a mover")
        return "other"

    def write(self, name: str, slots: Sequence[int], address: int, there: Sequence[int]) -> FakeWrite:
        self.writes.append(list(slots))
        return FakeWrite(list(slots), address, list(there))

    def done(self, write: FakeWrite) -> bool:
        if self.fails:
            raise MoveFailed("the link is down")
        if self.held:
            return False
        other = Staging(write.address, 0, self._staging.slot_bytes)
        for slot, there in zip(write.slots, write.there, strict=True):
            slot_of(other, there)[:] = slot_of(self._staging, slot)
        return True

    def forget(self, write: FakeWrite) -> None:
        pass

    def part(self, name: str) -> None:
        self.parted.append(name)
