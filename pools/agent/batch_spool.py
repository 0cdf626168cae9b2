"""Batches on disk that wait for the ingester: first in, first out, within a bound, over restarts of the agent.

A file is written and read as a whole, and deleted once all its batches have arrived. What an agent has left is sent by
the next one: perhaps some of it again, which the ingester knows by (agent, boot, seq).
"""

from __future__ import annotations

import errno
import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from pools.wire import AgentBatch

log = logging.getLogger(__name__)

MOST_BYTES = 1 << 30
DISK_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}  # other errors at the start are an operator's
_BATCHES = msgspec.msgpack.Decoder(list[AgentBatch])


class _File(NamedTuple):
    """A file of the spool, named `<nanoseconds>.<batches>.mp`: the order of names is that of time."""

    path: Path
    batches: int
    size: int


class BatchSpool:
    """The spool of one agent. `put` and `pending` block for the disk."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        """Makes the folder, and takes up what is in it. Raises OSError when it cannot be written to, unless the disk is
        full or broken."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in DISK_FAULTS:
                raise
        self._folder = folder
        self._most_bytes = most_bytes
        self._files = deque(
            _File(path, int(path.name.split(".")[1]), path.stat().st_size) for path in sorted(folder.glob("*.mp"))
        )
        self._first: deque[AgentBatch] = deque()  # what is left of the first file; empty: it is not read yet
        self.dropped = 0  # batches lost for good

    @property
    def waiting(self) -> int:
        """Batches that have not arrived."""
        if not self._files:
            return 0
        return sum(file.batches for file in islice(self._files, 1, None)) + self._waiting_in_first

    @property
    def _waiting_in_first(self) -> int:
        return len(self._first) or self._files[0].batches

    def put(self, batches: Sequence[AgentBatch]) -> None:
        """Writes a file; beyond the bound the oldest goes. Raises OSError: then none is written, and nothing half."""
        data = msgspec.msgpack.encode(list(batches))
        path = self._folder / f"{time.time_ns():020d}.{len(batches)}.mp"
        draft = self._folder / "draft"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(data)
            draft.rename(path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        self._files.append(_File(path, len(batches), len(data)))
        while len(self._files) > 1 and sum(file.size for file in self._files) > self._most_bytes:
            self._drop_first()

    def pending(self, most: int) -> list[AgentBatch]:
        """Returns the oldest batches, all of one file; none: nothing waits. A file that cannot be read is dropped."""
        while self._files and not self._first:
            path = self._files[0].path
            try:
                self._first.extend(_BATCHES.decode(path.read_bytes()))
            except (OSError, msgspec.DecodeError) as error:
                log.error("samples in %s are lost, as it cannot be read: %s", path, error)
            if not self._first:
                self._drop_first()
        return list(islice(self._first, most))

    def confirm(self, batches: int) -> None:
        """Forgets the oldest of those that `pending` gave: they have arrived."""
        for _ in range(batches):
            self._first.popleft()
        if batches and not self._first:
            self._delete_first()

    def _drop_first(self) -> None:
        self.dropped += self._waiting_in_first
        self._first.clear()
        self._delete_first()

    def _delete_first(self) -> None:
        """A file that cannot be deleted now is sent again by the next agent, which does no harm."""
        path = self._files.popleft().path
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.error("%s is done with and cannot be deleted: %s", path, error.strerror)
