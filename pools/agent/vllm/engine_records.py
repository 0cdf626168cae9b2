"""What runs, in a file for each engine: an agent that starts again finds what the last one left."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from urllib.parse import quote

import msgspec

from core.ports import InstanceSpec
from pools.own_address import LOOPBACK

logger = logging.getLogger(__name__)


class EngineRecord(msgspec.Struct, frozen=True):
    """`state`: starting | ready | sleeping | draining. `version`: vLLM's, as it says itself; empty: not asked yet.

    `start`: as `ports.InstanceStatus` has it; empty: not begun, or by an agent that did not look. `host`: where the
    engine listens; an agent that wrote none had all on the loopback. `key`: what it asks its clients for; empty:
    nothing, it was started by an agent that made none. `tls`: it speaks TLS.
    """

    spec: InstanceSpec
    pid: int
    began_ticks: int
    boot_id: str
    port: int
    started_at_s: float
    state: str = "starting"
    version: str = ""
    start: str = ""
    host: str = LOOPBACK
    key: str = ""
    tls: bool = False


class Records:
    """One agent's; each engine's file is written by its own thread alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, record: EngineRecord) -> None:
        path = self._path(record.spec.uid)
        draft = path.with_suffix(".tmp")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(record))
        os.replace(draft, path)

    def forget(self, uid: str) -> None:
        """What cannot be deleted is found again by the next agent, which sees that its process has ended."""
        try:
            self._path(uid).unlink(missing_ok=True)
        except OSError as error:
            logger.error("the record of instance %s cannot be deleted: %s", uid, error)

    def all(self) -> list[EngineRecord]:
        """A file that cannot be read is named in the log and left where it is."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=EngineRecord))
            except (OSError, msgspec.DecodeError, ValueError) as error:
                logger.warning("%s tells of an engine, but cannot be read: %s", path, error)
        return found

    def _path(self, uid: str) -> Path:
        return self._folder / f"{quote(uid, safe='')}.json"
