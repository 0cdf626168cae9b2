"""The scenario files that come with the product, named after the papers whose experiments they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from core.simulator.shipped_scenarios import folder

from .errors import BadStudy
from .scenario_documents import Document, read_text

PAPERS = {
    "azure-conv": "Azure conversation hour",
    "conversation-week": "A week of conversations",
    "dynamollm": "DynamoLLM",
    "dynaserve": "DynaServe",
    "muserve": "mu-Serve",
    "throttllem": "throttLL'eM",
}


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    label: str
    about: str  # what its head says, in one line


def available() -> tuple[Preset, ...]:
    """Returns the presets that are there, by name."""
    return tuple(_preset(path) for path in sorted(folder().glob("*.yaml")))


def load(name: str) -> Document:
    """Raises BadStudy when there is none of this name."""
    names = [preset.name for preset in available()]
    if name not in names:
        raise BadStudy("base", f"there is no preset '{name}'; there are: fleet, {', '.join(names)}")
    return read_text((folder() / f"{name}.yaml").read_text(encoding="utf-8"))


def _preset(path: Path) -> Preset:
    words = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") or line.startswith("#  "):
            break
        words.append(line.removeprefix("#").strip())
    paper = next((label for head, label in PAPERS.items() if path.stem.startswith(head)), "")
    label = f"{paper}: {path.stem}" if paper else path.stem
    return Preset(path.stem, label, " ".join(words))
