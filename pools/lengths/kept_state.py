"""What the predictor has learned, kept over restarts: files of NumPy arrays, which hold no code (no pickle).

`lengths.npz` is the present one. With the first write of a day that of an earlier day becomes a version, to go back to:
`lengths.2026-11-27.npz`. Nothing of it is needed. A file that is not ours is renamed and left aside, and
the predictor begins with the newest version, or without any.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

log = logging.getLogger(__name__)

FOLDER = "lengths"  # in the data folder
MOST_BYTES = 512 << 20  # unpacked; a predictor's memory is bounded far below that
MOST_VERSIONS = 7  # days on which something was learned
MOST_VERSION_BYTES = 256 << 20  # of all together; the newest stays in any case
_NAME, _REFUSED, _UNDONE, _LOCK = "lengths.npz", "lengths.refused.npz", "lengths.undone.npz", ".lock"
_VERSION = re.compile(r"lengths\.(\d{4}-\d\d-\d\d)\.npz")
_BAD = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile)
_Mark = tuple[int, int]
P = TypeVar("P")


class NoVersion(ValueError):
    """There is nothing to go back to."""


@dataclass(frozen=True, slots=True)
class KeptDay:
    """Holds what was learned until the end of a day (UTC)."""

    day: date
    path: Path
    size_bytes: int


class KeptState(Generic[P]):
    """The files in a folder that is the process's own. All methods block.

    Args:
        restored: Makes a predictor of arrays. Raises ValueError when they are not its own.
        fresh: Makes one that has learned nothing.
    """

    def __init__(self, folder: Path, restored: Callable[[Mapping[str, np.ndarray]], P], fresh: Callable[[], P]) -> None:
        self._path = folder / _NAME
        self._restored, self._fresh = restored, fresh
        self._seen: _Mark | None = None  # of the file as it was last read or written here

    def recall(self) -> P:
        """Returns the predictor of the file; where there is none, or it is refused, of the newest version, or new."""
        found = self.newest()
        for kept in [] if found is not None else versions(self._path.parent):
            if (found := self._predictor(kept.path)) is not None:
                log.warning("what was learned until %s is gone back to", kept.day)
                break
        return self._fresh() if found is None else found

    def newest(self) -> P | None:
        """Returns the predictor of the file; None: there is none, or it is refused."""
        self._seen = self._mark()
        return None if self._seen is None else self._predictor(self._path)

    @property
    def replaced(self) -> bool:
        """Says whether another has put a file in the place of the one that was last read or written here."""
        return self._mark() not in (None, self._seen)

    def write(self, state: Mapping[str, np.ndarray], now: datetime | None = None) -> bool:
        """Replaces the file, and keeps the one of another day as a version; False: another has replaced it meanwhile.

        Raises OSError, and ValueError for arrays of objects.
        """
        draft = self._path.with_name(f".{_NAME}.{os.getpid()}")
        try:
            with draft.open("wb") as file:
                np.savez(file, allow_pickle=False, **state)
            with self._locked():
                if self.replaced:
                    return False
                self._keep_day((now or datetime.now(UTC)).date())
                draft.replace(self._path)
                self._seen = self._mark()
        finally:
            draft.unlink(missing_ok=True)
        self._drop_versions()
        return True

    def roll_back(self) -> KeptDay:
        """Puts the newest version that is ours into the place of the file, which becomes `lengths.undone.npz`.

        A process that serves takes it within seconds. Raises NoVersion, and OSError.
        """
        for kept in versions(self._path.parent):
            if self._predictor(kept.path) is None:
                continue
            with self._locked():
                if self._path.exists():
                    self._path.replace(self._path.with_name(_UNDONE))
                kept.path.replace(self._path)
            return kept
        raise NoVersion(f"{self._path.parent} keeps nothing that was learned until an earlier day")

    def _keep_day(self, today: date) -> None:
        if self._path.exists():
            day = datetime.fromtimestamp(self._path.stat().st_mtime, UTC).date()
            if day != today:
                self._path.replace(self._path.with_name(f"lengths.{day}.npz"))

    def _drop_versions(self) -> None:
        total = 0
        for number, kept in enumerate(versions(self._path.parent)):
            total += kept.size_bytes
            if number and (number >= MOST_VERSIONS or total > MOST_VERSION_BYTES):
                kept.path.unlink(missing_ok=True)

    def _predictor(self, path: Path) -> P | None:
        """Returns the predictor of a file; None: it is not ours, which is logged, and it is left aside."""
        try:
            found = self._restored(_read(path))
        except _BAD as error:
            aside = path.with_name(_REFUSED)
            log.warning("%s is not ours (%s): it is left aside as %s", path, error, aside)
            try:
                path.replace(aside)
            except OSError as failed:
                log.warning("%s cannot be renamed, and will be overwritten: %s", path, failed)
            return None
        log.info("%s holds what was learned before", path)
        return found

    def _mark(self) -> _Mark | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps a process that writes and a command that goes back out of each other's way. Both take moments."""
        with self._path.with_name(_LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def versions(folder: Path) -> list[KeptDay]:
    """Returns what can be gone back to, newest first."""
    found = [
        KeptDay(date.fromisoformat(named[1]), path, path.stat().st_size)
        for path in folder.glob("lengths.*.npz")
        if (named := _VERSION.fullmatch(path.name))
    ]
    return sorted(found, key=lambda kept: kept.day, reverse=True)


def _read(path: Path) -> dict[str, np.ndarray]:
    """Raises one of _BAD."""
    with zipfile.ZipFile(path) as packed:
        size = sum(part.file_size for part in packed.infolist())
    if size > MOST_BYTES:
        raise ValueError(f"it unpacks to {size} bytes; {MOST_BYTES} are the most")
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
