"""Batches on their way to the ingester: numbered without gaps, kept until they have arrived, within a bound."""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice

from pools.wire import AgentBatch, ClockDecision, GpuSampleRow, GpuSamples, HostSampleRow, InstanceSampleRow

from .batch_spool import BatchSpool

log = logging.getLogger(__name__)

LIMIT = 600  # batches in memory; ten minutes at one a second
SPILL = 60  # with a spool: that many go there together


class Outbox:
    """Give out with `pending`, and forget with `confirm` what has arrived, from the oldest on.

    What arrived without a confirmation is sent again: the ingester knows a batch by (agent, boot, seq). With a spool
    what waits for long is on disk, and in memory what came after it.
    """

    def __init__(self, agent: str, boot: str, limit: int = LIMIT, spool: BatchSpool | None = None) -> None:
        self._agent = agent
        self._boot = boot
        self._limit = limit
        self._seq = 0
        self._batches: deque[AgentBatch] = deque()
        self._dropped = 0
        self._spool = spool
        self._spills = True

    def add(
        self,
        now_s: float,
        gpus: list[GpuSampleRow],
        instances: list[InstanceSampleRow],
        clocks: list[ClockDecision],
        hosts: list[HostSampleRow] | None = None,
    ) -> None:
        if not (gpus or instances or clocks or hosts):
            return
        self._seq += 1
        samples = GpuSamples.pack(gpus)
        self._batches.append(
            AgentBatch(self._agent, self._boot, self._seq, now_s, samples, instances, clocks, hosts or [])
        )
        if len(self._batches) >= SPILL:
            self.spill()
        if len(self._batches) > self._limit:
            self._batches.popleft()
            self._dropped += 1

    @property
    def waiting(self) -> int:
        """Batches that have not arrived."""
        return len(self._batches) + self._spooled

    @property
    def dropped(self) -> int:
        """Batches lost for good; their numbers are missing in the stream."""
        return self._dropped + (0 if self._spool is None else self._spool.dropped)

    @property
    def _spooled(self) -> int:
        return 0 if self._spool is None else self._spool.waiting

    def pending(self, most: int) -> list[AgentBatch]:
        spooled = [] if self._spool is None else self._spool.pending(most)
        return spooled or list(islice(self._batches, most))

    def confirm(self, batches: int) -> None:
        """Forgets the oldest of what `pending` gave, which have arrived. Nothing may be added in between."""
        if self._spool is not None and self._spool.waiting:
            self._spool.confirm(batches)
        else:
            for _ in range(batches):
                self._batches.popleft()

    def spill(self) -> None:
        """Moves what is in memory to the spool, if there is one that takes it."""
        if self._spool is None or not self._batches:
            return
        try:
            self._spool.put(self._batches)
        except OSError as error:
            if self._spills:
                log.error("samples that wait stay in memory, as they cannot be written to disk: %s", error)
            self._spills = False
        else:
            self._batches.clear()
            self._spills = True
