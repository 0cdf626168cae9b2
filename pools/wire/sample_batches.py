"""The agent's measurements and decisions for the ingester: samples of GPUs and of instances, and clock decisions."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import msgspec

from pools.wire.message_codec import Message


class GpuSampleRow(Message, frozen=True, gc=False):
    at_s: float
    gpu_uuid: str
    energy_j: float | None  # cumulative counter
    power_w: float | None
    sm_clock_mhz: float | None
    utilisation: float | None
    memory_used_bytes: int | None
    temperature_c: float | None
    instance_uid: str | None  # which instance the GPU was allocated to
    instance_state: str | None  # starting | ready | draining | failed
    running: int | None  # its running requests: busy or idle


class GpuLabels(Message, frozen=True, eq=False):
    """The subjects of GPU sample rows, by column. Two like ones are never equal, so that each can be a key."""

    gpu_uuids: list[str] = []
    instance_uids: list[str | None] = []  # which instance the GPU was allocated to
    instance_states: list[str | None] = []

    def __post_init__(self) -> None:
        rows = len(self.gpu_uuids)
        for name in ("instance_uids", "instance_states"):
            if len(getattr(self, name)) != rows:
                raise ValueError(f"{name} has {len(getattr(self, name))} values for {rows} GPUs")


GPU_NUMBERS = (
    *("at_s", "energy_j", "power_w", "sm_clock_mhz", "utilisation", "memory_used_bytes", "temperature_c", "running"),
)
NUMBER_BYTES = 8


class GpuSamples(Message, frozen=True):
    """Rows of GPU samples, packed: who reads thousands of them makes no object for each.

    Attributes:
        labels: GpuLabels in MessagePack. They seldom change, and a reader knows them again by their bytes.
        numbers: Of each row GPU_NUMBERS, as float64 in little-endian order; NaN: unknown. Integers are exact up to
            2**53. Later versions may append to them: what one does not know it passes over, what it misses is unknown.
    """

    labels: bytes = b""
    numbers: bytes = b""

    def __post_init__(self) -> None:
        """Raises ValueError where the numbers are not of all the rows, or the labels cannot be read."""
        rows = self.rows
        if len(self.numbers) % (NUMBER_BYTES * rows or 1) or bool(rows) != bool(self.numbers):
            raise ValueError(f"{len(self.numbers)} bytes are not the numbers of {rows} GPUs")

    @property
    def of_what(self) -> GpuLabels:
        return _labels(self.labels)

    @property
    def rows(self) -> int:
        return len(_labels(self.labels).gpu_uuids)

    @classmethod
    def pack(cls, rows: Sequence[GpuSampleRow]) -> GpuSamples:
        """What is not finite is unknown."""
        if not rows:
            return cls()
        labels = GpuLabels(
            [row.gpu_uuid for row in rows], [row.instance_uid for row in rows], [row.instance_state for row in rows]
        )
        values = [getattr(row, name) for row in rows for name in GPU_NUMBERS]
        finite = [math.nan if value is None or not math.isfinite(value) else value for value in values]
        return cls(msgspec.msgpack.encode(labels), struct.pack(f"<{len(finite)}d", *finite))

    def unpack(self) -> list[GpuSampleRow]:
        if not self.numbers:
            return []
        of, width = self.of_what, len(self.numbers) // (NUMBER_BYTES * self.rows or 1)
        labels = zip(of.gpu_uuids, of.instance_uids, of.instance_states, strict=True)
        found = []
        for (uuid, holder, state), numbers in zip(labels, struct.iter_unpack(f"<{width}d", self.numbers), strict=True):
            known = [None if math.isnan(number) else number for number in numbers]
            values: dict[str, Any] = {**dict.fromkeys(GPU_NUMBERS), **dict(zip(GPU_NUMBERS, known, strict=False))}
            for name in ("memory_used_bytes", "running"):
                values[name] = None if values[name] is None else int(values[name])
            found.append(GpuSampleRow(gpu_uuid=uuid, instance_uid=holder, instance_state=state, **values))
        return found


@lru_cache(maxsize=8_192)
def _labels(data: bytes) -> GpuLabels:
    return msgspec.msgpack.decode(data, type=GpuLabels) if data else GpuLabels()


class HostSampleRow(Message, frozen=True, gc=False):
    """One domain of the node's host; `energy_j` counts from the agent's start (`core.ports.HostReading`)."""

    at_s: float
    domain: str
    method: str
    energy_j: float | None
    power_w: float | None


class InstanceSampleRow(Message, frozen=True, gc=False):
    at_s: float
    instance_uid: str
    state: str
    running: int | None
    waiting: int | None
    kv_usage: float | None
    prompt_tokens_total: float | None
    generation_tokens_total: float | None
    ttft_s: float | None
    tpot_s: float | None
    sm_clock_mhz: float | None
    url: str | None = None
    detail: str = ""
    start: str = ""  # as InstanceState's
    tp: int = 0  # of the GPUs that it serves on; 0: the agent does not say
    reshards: bool = False  # as InstanceState's


class ClockDecision(Message, frozen=True):
    """A change of clock, or the end of a run of `held` equal decisions (run-length encoding of holds)."""

    at_s: float
    instance_uid: str
    reason: str
    summary: str
    from_mhz: float
    to_mhz: float
    held: int
    inputs: dict[str, float | int | str | None]


class AgentBatch(Message, frozen=True):
    """Rows of one agent, numbered without gaps by (agent, boot, seq): ingesting one twice changes nothing."""

    packed: ClassVar[bool] = True

    agent: str
    boot: str
    seq: int
    sent_at_s: float
    gpus: GpuSamples = GpuSamples()
    instances: list[InstanceSampleRow] = []
    clocks: list[ClockDecision] = []
    hosts: list[HostSampleRow] = []
