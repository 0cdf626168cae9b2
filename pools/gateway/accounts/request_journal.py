"""Request rows on local disk: written before the client sees the end of its response, shipped to Redis afterwards.

A row is one JSON line. Rows of requests that end together are written by one `os.write` to a file in append mode, so
that they outlive `kill -9`. The file in use is locked; once closed it never changes, and it is deleted only after Redis
has confirmed all its rows. Rows may be shipped twice (a kill between confirmation and deletion) and never not at all:
the ingester knows a row by its time and its request's id, in whatever batch and order it comes.

While the disk takes no rows they are held in memory, within a bound, and shipped from there. Each `mend` looks whether
the disk is right again. Only rows for which there is no room in memory either are lost, or those that a `kill -9` meets
there.

Several gateways may share a folder: whoever ships a file locks it meanwhile, so that what a killed one has left goes
out once, by whichever of the others comes first. Each holds rows of its own.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import msgspec

from pools import wire

from .held_rows import HeldRows

log = logging.getLogger(__name__)

ROTATE_BYTES = 4 << 20
BATCH_ROWS = 500
BATCHES_PER_FILE = 1000  # numbers set aside for the batches of one file; 4 MiB hold fewer
MEND_EVERY_S = 1.0
PROBE_BYTES = 256 << 10  # so much room a disk has that takes rows again
_DISK_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}  # other errors at the start are an operator's
_SUFFIX = ".jsonl"
_ENCODER = msgspec.json.Encoder()


class Journal:
    """The rows of one gateway process, in numbered files of one spool folder. `append` blocks for a disk write.

    `fault`: why the disk takes no rows; empty: it does. `lost_rows`: since the start, the last at `lost_at_s` (Unix).
    """

    def __init__(self, spool: Path, gateway: str, boot: str, held: HeldRows | None = None) -> None:
        """Makes the folder. Raises OSError when it cannot be written to; a disk that is full or broken is a fault."""
        self._spool = spool
        self._gateway = gateway
        self._boot = boot
        self._number = 0  # of the newest file, or batch of held rows
        self._path = spool  # of the file in use
        self._fd: int | None = None
        self._size = 0
        self._rows = 0
        self._sound_files: set[Path] = set()
        self._undeleted: set[Path] = set()  # shipped
        self._unreadable: set[Path] = set()  # and logged
        self._mend_at_s = 0.0
        self.held = HeldRows() if held is None else held
        self.fault = ""
        self.lost_rows = 0
        self.lost_at_s: float | None = None
        try:
            self._open()
        except OSError as error:
            if error.errno not in _DISK_FAULTS:
                raise
            self._note(error)

    def append(self, *rows: wire.RequestRow) -> None:
        """Writes rows, or holds them in memory. The requests themselves are not failed for their records."""
        lines = _ENCODER.encode_lines(rows)
        if left := self._write(lines):
            self._hold(left)

    @property
    def empty(self) -> bool:
        """Says whether there is nothing in the file in use."""
        return self._size == 0

    @property
    def full(self) -> bool:
        return self._size >= ROTATE_BYTES

    def disk_state(self) -> wire.DiskState:
        return wire.DiskState(self.fault, len(self.held), self.lost_rows, self.lost_at_s)

    def rotate(self) -> None:
        """Closes the file in use, which makes it ready to ship, and opens the next."""
        self._close_file()
        try:
            self._open()
        except OSError as error:
            self._note(error)

    def mend(self) -> None:
        """Sees whether the file in use is still there; after a fault, whether the disk is right again. What is held
        then goes there first."""
        if self._fd is not None:
            if self._is_gone():
                self._rescue(self._fd)
            return
        if (now_s := time.monotonic()) < self._mend_at_s:
            return
        self._mend_at_s = now_s + MEND_EVERY_S
        try:
            self._open()
            self._probe()
        except OSError as error:
            self._note(error)
            return
        held = self.held.first(len(self.held))
        left = self._write(b"".join(held))
        self.held.drop_first(len(held) - left.count(b"\n"))
        if not left:
            log.info("request rows go to the disk again; %d that were held in memory are there now", len(held))
            self.fault = ""

    def is_sound(self, path: Path) -> bool:
        """Says whether this process has written the file, each row as a whole."""
        return path in self._sound_files

    def shipped(self, path: Path) -> None:
        """Deletes a file whose rows have all been confirmed; a disk that does not let it gets it later."""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            if path not in self._undeleted:
                log.error("%s has been shipped and cannot be deleted yet: %s", path, error.strerror)
            self._undeleted.add(path)
        else:
            self._undeleted.discard(path)
        self._sound_files.discard(path)

    def unreadable(self, path: Path, error: OSError) -> None:
        """Says once of a file that it waits because it cannot be read."""
        if path not in self._unreadable:
            log.error("the request rows of %s wait, as it cannot be read: %s", path, error.strerror)
        self._unreadable.add(path)

    def close(self) -> None:
        """Closes the file in use; an empty one is removed. Rows that are held still are lost."""
        if self._fd is not None:
            self._close_file()
        if self.held:
            self._lose(len(self.held))
            self.held.drop_first(len(self.held))

    def closed_files(self) -> list[Path]:
        """Returns files to ship, oldest first: our own closed ones, and those that dead gateways have left."""
        for path in list(self._undeleted):
            self.shipped(path)
        skipped = {*self._undeleted, self._path}
        found = [path for path in self._spool.glob("requests.*" + _SUFFIX) if path not in skipped]
        self._sound_files.intersection_update(found)  # others may have shipped some
        return sorted((path for path in found if self._is_free(path)), key=_age)

    def held_batch(self) -> wire.RequestBatch | None:
        """Returns the oldest of what is held; None: nothing is."""
        if not self.held:
            return None
        self._number += 1
        rows = cast(list[wire.RequestRow], [msgspec.Raw(line[:-1]) for line in self.held.first(BATCH_ROWS)])
        return wire.RequestBatch(self._gateway, self._boot, self._number * BATCHES_PER_FILE, rows)

    # -- inside ------------------------------------------------------------------------------------

    def _write(self, lines: bytes) -> bytes:
        """Returns the rows that were not written: the file in use is then closed, and without a torn row."""
        done = 0
        try:
            while done < len(lines):
                if self._fd is None:
                    return lines
                done += os.write(self._fd, lines[done:])
        except OSError as error:
            whole = lines.rfind(b"\n", 0, done) + 1
            self._size += whole
            self._note(error)
            return lines[whole:]
        self._size += done
        self._rows += lines.count(b"\n")
        return b""

    def _hold(self, lines: bytes) -> None:
        found = lines.splitlines(keepends=True)
        lost = sum(not self.held.add(line) for line in found)
        if lost:
            self._lose(lost)

    def _lose(self, rows: int) -> None:
        now_s, said_s = time.time(), self.lost_at_s or 0.0
        self.lost_rows += rows
        self.lost_at_s = now_s
        if int(now_s) != int(said_s):  # once a second
            log.error("%d request rows are lost since the start; the disk: %s", self.lost_rows, self.fault or "works")

    def _note(self, error: OSError) -> None:
        """Gives up the file in use. Says once that the disk takes no rows."""
        if self._fd is not None:
            self._close_file()
        if not self.fault:
            log.error("request rows are held in memory, as the journal in %s fails: %s", self._spool, error)
        self.fault = error.strerror or str(error)
        self._mend_at_s = time.monotonic() + MEND_EVERY_S

    def _open(self) -> None:
        self._number += 1
        self._size = self._rows = 0
        self._spool.mkdir(parents=True, exist_ok=True)
        path = self._spool / f"requests.{self._gateway}.{self._boot}.{self._number:08d}{_SUFFIX}"
        draft = path.with_suffix(".new")  # until it is locked: others would take it for one that was left behind
        fd = os.open(draft, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.rename(path)
        except OSError:
            os.close(fd)
            draft.unlink(missing_ok=True)
            raise
        self._path, self._fd = path, fd

    def _close_file(self) -> None:
        """Cuts a torn row off and closes the file in use; an empty one is removed."""
        assert self._fd is not None
        fd, path = self._fd, self._path
        self._path, self._fd = self._spool, None
        try:
            os.ftruncate(fd, self._size)
            self._sound_files.add(path)
        except OSError as error:
            log.warning("the last row of %s may be torn: %s", path.name, error)
        with suppress(OSError):  # what a close may say was said to the write
            os.close(fd)
        if self.empty:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            self._sound_files.discard(path)
        self._size = self._rows = 0

    def _probe(self) -> None:
        """Raises OSError when the disk has hardly any room: an empty file says nothing of that."""
        assert self._fd is not None
        written = os.write(self._fd, b"\n" * PROBE_BYTES)
        os.ftruncate(self._fd, 0)
        if written < PROBE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_gone(self) -> bool:
        try:
            os.stat(self._path)
        except FileNotFoundError:
            return True
        except OSError:
            return False  # who could not look does not know
        return False

    def _rescue(self, fd: int) -> None:
        """Holds the rows of a file in use that somebody has deleted, or moved away; the next one is opened."""
        log.error("%s is gone while it was written to; its rows are held", self._path)
        try:
            self._hold(os.pread(fd, self._size, 0))
        except OSError as error:
            self.fault = str(error)
            self._lose(self._rows)
        self._path, self._fd = self._spool, None
        os.close(fd)
        try:
            self._open()
        except OSError as error:
            self._note(error)

    def _is_free(self, path: Path) -> bool:
        """Says whether no living gateway writes to the file, or ships it; nor has just shipped it."""
        try:
            with claim(path) as mine:
                return mine
        except OSError as error:
            self.unreadable(path, error)
            return False


@contextmanager
def claim(path: Path) -> Iterator[bool]:
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
    return stat_of(path)[0], path.name


def stat_of(path: Path) -> tuple[float, int]:
    """Returns when the file was changed, and its size in bytes; zeros when another gateway has shipped it meanwhile."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0.0, 0
    return found.st_mtime, found.st_size
