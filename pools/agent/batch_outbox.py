"""Batches on their way to the ingester: numbered without gaps, kept while Redis is away, within a bound."""

from __future__ import annotations

from collections import deque
from itertools import islice

from pools.wire import AgentBatch, ClockDecision, GpuSampleRow, GpuSamples, InstanceSampleRow

LIMIT = 600  # batches; ten minutes at one a second


class Outbox:
    """Give out with `pending`, and forget with `confirm` what has arrived.

    What arrived without a confirmation is sent again: the ingester knows a batch by (agent, boot, seq).
    """

    def __init__(self, agent: str, boot: str, limit: int = LIMIT) -> None:
        self._agent = agent
        self._boot = boot
        self._limit = limit
        self._seq = 0
        self._batches: deque[AgentBatch] = deque()
        self.dropped = 0  # batches lost for good; their numbers are missing in the stream

    def add(
        self,
        now_s: float,
        gpus: list[GpuSampleRow],
        instances: list[InstanceSampleRow],
        clocks: list[ClockDecision],
    ) -> None:
        if not (gpus or instances or clocks):
            return
        if len(self._batches) >= self._limit:
            self._batches.popleft()
            self.dropped += 1
        self._seq += 1
        samples = GpuSamples.pack(gpus)
        self._batches.append(AgentBatch(self._agent, self._boot, self._seq, now_s, samples, instances, clocks))

    @property
    def waiting(self) -> int:
        """Batches that have not arrived."""
        return len(self._batches)

    def pending(self, most: int) -> list[AgentBatch]:
        return list(islice(self._batches, most))

    def confirm(self, batches: int) -> None:
        for _ in range(batches):
            self._batches.popleft()
