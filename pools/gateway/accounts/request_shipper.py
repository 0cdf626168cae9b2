"""Request rows on their way from the journal to Redis."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

import msgspec

from pools import wire

from .request_journal import BATCH_ROWS, BATCHES_PER_FILE, Journal, claim, stat_of

log = logging.getLogger(__name__)

WARN_BACKLOG_BYTES = 256 << 20
FINISH_EVERY_S = 0.3
_WARN_EVERY_S = 60.0
_ROW = msgspec.json.Decoder(wire.RequestRow)


def batches(path: Path, sound: bool = False) -> Iterator[wire.RequestBatch]:
    """Yields a closed file's rows in batches whose numbers depend on nothing but the file. Torn lines are skipped.

    Args:
        sound: There are none, so that rows need not be read to be shipped: they are `msgspec.Raw` in their batch.
    """
    gateway, boot, number = _name_parts(path)
    rows: list[wire.RequestRow] = []
    seq = number * BATCHES_PER_FILE
    for line in path.read_bytes().splitlines():
        if not line:
            continue
        try:
            rows.append(cast(wire.RequestRow, msgspec.Raw(line)) if sound else _ROW.decode(line))
        except msgspec.DecodeError as error:
            log.warning("%s holds a broken row, skipped: %s", path.name, error)
            continue
        if len(rows) == BATCH_ROWS:
            yield wire.RequestBatch(gateway, boot, seq, rows)
            seq, rows = seq + 1, []
    if rows:
        yield wire.RequestBatch(gateway, boot, seq, rows)


def _name_parts(path: Path) -> tuple[str, str, int]:
    """Returns gateway, boot and number of `requests.<gateway>.<boot>.<number>.jsonl`; the first may have dots."""
    head, boot, number, _ = path.name.rsplit(".", 3)
    return head.removeprefix("requests."), boot, int(number)


class StreamFull(OSError):
    """The stream has no room: what reads it is behind, or away."""


class BatchStream(Protocol):
    """Takes encoded batches. Blocks for at most its time-out; raises any exception when one is not confirmed.

    After `StreamFull` all that was confirmed before is known to be there.
    """

    async def add(self, batch: wire.RequestBatch) -> None: ...


class Shipper:
    """Moves rows from the journal to the stream. One `ship` at a time."""

    def __init__(self, journal: Journal, stream: BatchStream) -> None:
        self._journal = journal
        self._stream = stream
        self._warned_at_s = -_WARN_EVERY_S
        self._begun: tuple[Path, deque[wire.RequestBatch]] | None = None  # a file, and what is left of it
        self.shipped_rows = 0
        self.backlog_bytes = 0

    async def ship(self) -> None:
        """Ships all there is. While the stream is away the file in use grows, and a new one begins only when full.

        Raises whatever the stream raises; what was not confirmed stays on disk, or in memory.
        """
        journal = self._journal
        journal.mend()
        while batch := journal.held_batch():  # first, as they are the least safe
            await self._stream.add(batch)
            journal.held.drop_first(len(batch.rows))
            self.shipped_rows += len(batch.rows)
        waiting = journal.closed_files()
        if not journal.empty and (not waiting or journal.full):
            journal.rotate()
            waiting = journal.closed_files()
        self._watch_backlog(waiting)
        for path in waiting:
            with claim(path) as mine:
                if mine and await self._ship_file(path):
                    journal.shipped(path)

    async def finish(self, until_s: float) -> None:
        """Ships what can be shipped, for the last time. As long as rows are in memory alone it tries again, until
        `until_s` (monotonic). Raises nothing."""
        while True:
            try:
                await self.ship()
            except Exception as error:
                log.warning("request rows stay on disk for the next one of this name: %s", error)
            if not self._journal.held or time.monotonic() >= until_s:
                return
            await asyncio.sleep(FINISH_EVERY_S)

    async def _ship_file(self, path: Path) -> bool:
        """Ships a file, or what was left of it when the stream was full. False: it cannot be read.

        After any other failure it goes again from its start: a stream that was away may have lost what it confirmed.
        """
        if self._begun is None or self._begun[0] != path:
            try:
                self._begun = path, deque(batches(path, self._journal.is_sound(path)))
            except OSError as error:
                self._journal.unreadable(path, error)
                return False
        left = self._begun[1]
        while left:
            try:
                await self._stream.add(left[0])
            except StreamFull:
                raise
            except Exception:
                self._begun = None
                raise
            self.shipped_rows += len(left.popleft().rows)
        return True

    def _watch_backlog(self, waiting: list[Path]) -> None:
        self.backlog_bytes = sum(stat_of(path)[1] for path in waiting)
        now_s = time.monotonic()
        if self.backlog_bytes > WARN_BACKLOG_BYTES and now_s - self._warned_at_s > _WARN_EVERY_S:
            self._warned_at_s = now_s
            log.warning("%d MB of request rows wait on disk to be shipped to Redis", self.backlog_bytes // 10**6)
