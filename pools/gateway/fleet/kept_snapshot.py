"""The last fleet that a gateway has read, kept on disk, for a start at which Redis or agents cannot be heard.

It holds the hashes of API keys: its file is its owner's alone.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pools import wire

log = logging.getLogger(__name__)

OLDEST_S = 86_400.0  # a key that was revoked since is still in it
_SUFFIX = ".fleet.json"


class KeptFleet(msgspec.Struct, frozen=True):
    """A fleet with its agents' states, and when it was last confirmed (Unix time of this host)."""

    at_s: float
    fleet: wire.Fleet
    states: dict[str, wire.AgentState]


class KeptSnapshot:
    """The file of one process. What is wrong with it is logged: a gateway serves without it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}{_SUFFIX}"

    def read(self) -> KeptFleet | None:
        """Returns what was kept within the last day; None: nothing that can be used. Blocks."""
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=KeptFleet)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the fleet that was kept is left aside: %s: %s", self._path, error)
            return None
        age_s = time.time() - kept.at_s
        if age_s > OLDEST_S:
            log.warning("the fleet that was kept is %.0f h old and is left aside: %s", age_s / 3600.0, self._path)
            return None
        return kept

    def write(self, fleet: wire.Fleet, states: Mapping[str, wire.AgentState]) -> None:
        """Replaces the file. Blocks; raises OSError."""
        data = msgspec.json.encode(KeptFleet(time.time(), fleet, dict(states)))
        fresh = self._path.with_name(f"{self._path.name}.new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        fresh.replace(self._path)
