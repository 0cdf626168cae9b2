"""Batches on their way to the ingester: numbered without gaps, kept until they have arrived, within a bound."""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice

from pools.wire import AgentBatch, ClockDecision, DiskState, GpuSampleRow, GpuSamples, HostSampleRow, InstanceSampleRow

from .batch_spool import BatchSpool

log = logging.getLogger(__name__)

LIMIT = 600  # batches in memory; ten minutes at one a second
SPILL = 60  # with a spool: that many go there together


class Outbox:
    """Give out with `pending`, and forget with `confirm` what has arrived, from the oldest on.

    What arrived without a confirmation is sent again: the ingester knows a batch by (agent, boot, seq). With a spool
    what waits for long is on disk, and in memory what came after it. While the disk takes nothing, all of it is in
    memory and goes from there; beyond the bound the oldest is dropped. The counters go on: the next sample that arrives
    has the energy of those that were dropped, and the ledger enters it as unattributed.
    """

    def __init__(self, agent: str, boot: str, limit: int = LIMIT, spool: BatchSpool | None = None) -> None:
        self._agent = agent
        self._boot = boot
        self._limit = limit
        self._seq = 0
        self._batches: deque[AgentBatch] = deque()
        self._dropped = 0
        self._spool = spool
        self._fault = ""  # why the spool takes nothing
        self._noted = 0  # of `dropped`, at the last look
        self._dropped_at_s: float | None = None

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
        if self.dropped > self._noted:
            self._noted, self._dropped_at_s = self.dropped, now_s

    @property
    def waiting(self) -> int:
        """Batches that have not arrived."""
        return len(self._batches) + self._spooled

    @property
    def dropped(self) -> int:
        """Batches lost for good; their numbers are missing in the stream."""
        return self._dropped + (0 if self._spool is None else self._spool.dropped)

    def disk_state(self) -> DiskState:
        return DiskState(self._fault, len(self._batches) if self._fault else 0, self.dropped, self._dropped_at_s)

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
            if not self._batches:
                self._fault = ""  # nothing is in memory alone

    def spill(self) -> None:
        """Moves what is in memory to the spool, if there is one that takes it."""
        if self._spool is None or not self._batches:
            return
        try:
            self._spool.put(self._batches)
        except OSError as error:
            if not self._fault:
                log.error("samples that wait stay in memory, as they cannot be written to disk: %s", error)
            self._fault = error.strerror or str(error)
        else:
            self._batches.clear()
            self._fault = ""
