"""Request rows on local disk: written before the client sees the end of its response, shipped to Redis afterwards.

A row is one JSON line. Rows of requests that end together are written by one `os.write` to a file in append mode, so
that they outlive `kill -9`. The file in use is locked; once closed it never changes, and it is deleted only after Redis
has confirmed all its rows. Rows may be shipped twice (a kill between confirmation and deletion) and never not at all:
the batches of a file always carry the same numbers, and the ingester ignores numbers that it has seen.

Several gateways may share a folder: whoever ships a file locks it meanwhile, so that what a killed one has left goes
out once, by whichever of the others comes first.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

import msgspec

from pools import wire

log = logging.getLogger(__name__)

ROTATE_BYTES = 4 << 20
BATCH_ROWS = 500
BATCHES_PER_FILE = 1000  # numbers set aside for the batches of one file; 4 MiB hold fewer
WARN_BACKLOG_BYTES = 256 << 20
_WARN_EVERY_S = 60.0
_SUFFIX = ".jsonl"
_ROW = msgspec.json.Decoder(wire.RequestRow)
_ENCODER = msgspec.json.Encoder()


class Journal:
    """The rows of one gateway process, in numbered files of one spool folder. `append` blocks for a disk write."""

    def __init__(self, spool: Path, gateway: str, boot: str) -> None:
        """Makes the folder. Raises OSError when it cannot be written to."""
        spool.mkdir(parents=True, exist_ok=True)
        self._spool = spool
        self._gateway = gateway
        self._boot = boot
        self._number = 0
        self._torn = False
        self._size = 0
        self._sound_files: set[Path] = set()
        self._fd = -1  # of the file in use
        self.lost_rows = 0
        self._open()

    def append(self, *rows: wire.RequestRow) -> None:
        """Writes rows. A full disk loses some, loudly: the requests themselves are not failed for their records."""
        lines = _ENCODER.encode_lines(rows)
        torn, kept = self._torn, 0
        try:
            written = os.write(self._fd, b"\n" + lines if torn else lines)
            self._size += written
            kept = lines.count(b"\n", 0, max(0, written - torn))
            self._torn = kept < len(rows)
            if self._torn:
                self._sound = False
                raise OSError(f"only {written} of {len(lines)} bytes were written")
        except OSError as error:
            self.lost_rows += len(rows) - kept
            for row in rows[kept:]:
                log.error("request %s is not in the journal: %s", row.request_id, error)

    @property
    def empty(self) -> bool:
        return self._size == 0

    @property
    def full(self) -> bool:
        return self._size >= ROTATE_BYTES

    def rotate(self) -> None:
        """Closes the file in use, which makes it ready to ship, and opens the next."""
        os.close(self._fd)
        if self._sound:
            self._sound_files.add(self._path(self._number))
        self._open()

    def is_sound(self, path: Path) -> bool:
        """Says whether this process has written the file, each row as a whole."""
        return path in self._sound_files

    def shipped(self, path: Path) -> None:
        """Deletes a file whose rows have all been confirmed."""
        path.unlink(missing_ok=True)
        self._sound_files.discard(path)

    def close(self) -> None:
        """Closes the file in use; an empty one is removed."""
        os.close(self._fd)
        if self.empty:
            self._path(self._number).unlink(missing_ok=True)

    def closed_files(self) -> list[Path]:
        """Returns files to ship, oldest first: our own closed ones, and those that dead gateways have left."""
        mine = self._path(self._number)
        found = [path for path in self._spool.glob("requests.*" + _SUFFIX) if path != mine]
        self._sound_files.intersection_update(found)  # others may have shipped some
        return sorted((path for path in found if not _in_use(path)), key=_age)

    def _open(self) -> None:
        self._number += 1
        self._size = 0
        self._torn = False
        self._sound = True  # no write to the file in use was torn
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        path = self._path(self._number)
        draft = path.with_suffix(".new")  # until it is locked: others would take it for one that was left behind
        self._fd = os.open(draft, flags, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(path)

    def _path(self, number: int) -> Path:
        return self._spool / f"requests.{self._gateway}.{self._boot}.{number:08d}{_SUFFIX}"


def _in_use(path: Path) -> bool:
    """Says whether a living gateway writes to the file, or ships it; or has just shipped it."""
    with _claim(path) as mine:
        return not mine


@contextmanager
def _claim(path: Path) -> Iterator[bool]:
    """Yields whether the file is there, and nobody else's while the context lasts."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield os.fstat(file.fileno()).st_nlink > 0  # else it was shipped before the lock was had


def _age(path: Path) -> tuple[float, str]:
    return _stat(path)[0], path.name


def _stat(path: Path) -> tuple[float, int]:
    """Returns when the file was changed, and its size in bytes; zeros when another gateway has shipped it meanwhile."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0.0, 0
    return found.st_mtime, found.st_size


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

        Raises whatever the stream raises; what was not confirmed stays on disk.
        """
        waiting = self._journal.closed_files()
        if not self._journal.empty and (not waiting or self._journal.full):
            self._journal.rotate()
            waiting = self._journal.closed_files()
        self._watch_backlog(waiting)
        for path in waiting:
            with _claim(path) as mine:
                if not mine:
                    continue
                await self._ship_file(path)
                self._journal.shipped(path)

    async def _ship_file(self, path: Path) -> None:
        """Ships a file, or what was left of it when the stream was full.

        After any other failure it goes again from its start: a stream that was away may have lost what it confirmed.
        """
        if self._begun is None or self._begun[0] != path:
            self._begun = path, deque(batches(path, self._journal.is_sound(path)))
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

    def _watch_backlog(self, waiting: list[Path]) -> None:
        self.backlog_bytes = sum(_stat(path)[1] for path in waiting)
        now_s = time.monotonic()
        if self.backlog_bytes > WARN_BACKLOG_BYTES and now_s - self._warned_at_s > _WARN_EVERY_S:
            self._warned_at_s = now_s
            log.warning("%d MB of request rows wait on disk to be shipped to Redis", self.backlog_bytes // 10**6)
