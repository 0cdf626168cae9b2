"""What the predictor has learned, kept over restarts: one file of NumPy arrays, which holds no code (no pickle).

Nothing of it is needed. A file that is not ours is renamed and left aside, and the predictor begins without one.
"""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

log = logging.getLogger(__name__)

MOST_BYTES = 512 << 20  # unpacked; a predictor's memory is bounded far below that
_NAME = "lengths.npz"
_REFUSED = "lengths.refused.npz"
P = TypeVar("P")


class KeptState:
    """The file in a folder that is the process's own. All methods block."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME

    def recall(self, restored: Callable[[Mapping[str, np.ndarray]], P], fresh: Callable[[], P]) -> P:
        """Returns what `restored` makes of the file; where there is none, or it is refused, a `fresh` one.

        Args:
            restored: Raises ValueError when the arrays are not its own.
        """
        if not self._path.exists():
            return fresh()
        try:
            found = restored(self._read())
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
            self._refuse(error)
            return fresh()
        log.info("%s holds what was learned before", self._path)
        return found

    def write(self, state: Mapping[str, np.ndarray]) -> None:
        """Replaces the file. Raises OSError, and ValueError for arrays of objects."""
        draft = self._path.with_name(f".{_NAME}.{os.getpid()}")
        try:
            with draft.open("wb") as file:
                np.savez(file, allow_pickle=False, **state)
            draft.replace(self._path)
        finally:
            draft.unlink(missing_ok=True)

    def _read(self) -> dict[str, np.ndarray]:
        """Raises OSError, EOFError, KeyError, ValueError and BadZipFile."""
        with zipfile.ZipFile(self._path) as packed:
            size = sum(part.file_size for part in packed.infolist())
        if size > MOST_BYTES:
            raise ValueError(f"it unpacks to {size} bytes; {MOST_BYTES} are the most")
        with np.load(self._path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def _refuse(self, error: Exception) -> None:
        aside = self._path.with_name(_REFUSED)
        log.warning("%s is not ours (%s): it is left aside as %s, and all is learned anew", self._path, error, aside)
        try:
            self._path.replace(aside)
        except OSError as failed:
            log.warning("%s cannot be renamed, and will be overwritten: %s", self._path, failed)
