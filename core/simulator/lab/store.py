"""Runs that are done, kept by what they depend on, so that an interrupted laboratory goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import core
import core.simulator
from core.simulator.runs.simulation_jobs import SimulationJob


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of figures. A run is found again as long as its scenario, policy, trace and the code are the same."""

    folder: Path

    def find(self, job: SimulationJob) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._path(job).read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None  # half written when it was interrupted
        return found

    def keep(self, job: SimulationJob, figures: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(job)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(figures, allow_nan=False), encoding="utf-8")
        part.replace(path)

    def _path(self, job: SimulationJob) -> Path:
        words = [_code(), _digest(Path(job.scenario)), *job.settings, job.policy]
        words.append("" if job.trace is None else _digest(Path(job.trace)))
        return self.folder / f"{hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]}.json"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _code() -> str:
    """Returns a digest of all code and data that a figure may depend on."""
    files: Sequence[Path] = sorted(
        path
        for package in (core, core.simulator)
        for folder in package.__path__
        for path in Path(folder).rglob("*")
        if path.suffix in (".py", ".json", ".csv") and "lab" not in path.parts
    )
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
