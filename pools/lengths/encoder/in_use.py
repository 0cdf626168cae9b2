"""The version that is in use, in a process that stays: loaded once, and again when another is put into use."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from core.length_odds import LengthOdds

from .needs import LearnedMissing
from .predictor import EncoderPredictor
from .version_files import UnusableVersion
from .versions import InUse, Versions

logger = logging.getLogger(__name__)
_Mark = tuple[int, int, int]


class EncoderInUse:
    """A LengthProxyModel of whichever version is in use; of none it says nothing.

    Each question looks whether another was put into use, which costs microseconds; the first that finds one waits for
    the seconds that loading it takes. Where that cannot be loaded, the one before goes on, and `fault` says why. Only
    `serves` may be asked by another thread at the same time.
    """

    def __init__(self, data_folder: Path, threads: int = 1) -> None:
        self._versions, self._threads = Versions(data_folder), threads
        self._seen: _Mark | None = None
        self._loaded: EncoderPredictor | None = None
        self.used: InUse | None = None  # None: none
        self.fault = ""  # empty: what is in use is loaded

    def refresh(self) -> None:
        """Loads what is in use, where that changed since the last time; at the start, before the first question."""
        mark = self._mark()
        if mark == self._seen:
            return
        self._seen, self.fault = mark, ""
        try:
            used = self._versions.in_use()
            if used is not None:
                folder = self._versions.path(used.name, used.version)
                self._loaded = EncoderPredictor.load(folder, used.services, self._threads)
            else:
                self._loaded = None
            self.used = used
        except (UnusableVersion, LearnedMissing, OSError) as error:
            self.fault = str(error)
            logger.warning("the encoder that is in use cannot be loaded: %s", error)

    def serves(self, service: str) -> bool:
        """Says whether the version in use serves a service; of one that is yet to be loaded that it may."""
        if self._mark() != self._seen:
            return True
        return self._loaded is not None and self._loaded.serves(service)

    def predict(self, services: Sequence[str], prompts: Sequence[str]) -> Sequence[LengthOdds | None]:
        """Asks the version in use. Raises PermanentError."""
        self.refresh()
        return [None] * len(prompts) if self._loaded is None else self._loaded.predict(services, prompts)

    def _mark(self) -> _Mark | None:
        try:
            found = self._versions.pointer.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size
