"""Finds models' weights on the node: in the engines' cache, in other caches of Hugging Face, and in folders given."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pools.wire import ModelOnDisk

MOST = 50


def find(engines_cache: Path, folders: Sequence[Path], own: Mapping[str, str]) -> list[ModelOnDisk]:
    """Returns what a model card may name as weights here, the largest first. `own`: the agent's environment.

    Models in the engines' cache (a HF_HOME) go by their id. Those of other caches go by the folder of their snapshot,
    since engines do not look there for an id. A folder counts that has a `config.json`, itself or one level below.
    """
    found: dict[str, int] = {}
    for folder, name in _snapshots(engines_cache / "hub"):
        found[name] = _size(folder)
    others = [own.get("HF_HUB_CACHE"), _joined(own.get("HF_HOME"), "hub")]
    others.append(_joined(own.get("HOME"), ".cache/huggingface/hub"))
    for cache in dict.fromkeys(filter(None, others)):
        if Path(cache) != engines_cache / "hub":
            found |= {str(folder): _size(folder) for folder, _ in _snapshots(Path(cache))}
    for given in folders:
        for folder in (given, *_entries(given)):
            if (folder / "config.json").is_file():
                found[str(folder)] = _size(folder)
    largest = sorted(found.items(), key=lambda one: (-one[1], one[0]))[:MOST]
    return [ModelOnDisk(weights, size_bytes) for weights, size_bytes in largest]


def _snapshots(hub: Path) -> Iterator[tuple[Path, str]]:
    """Yields the newest snapshot of each model that a cache has whole, and the model's id."""
    for folder in _entries(hub):
        if not folder.name.startswith("models--") or any((folder / "blobs").glob("*.incomplete")):
            continue
        snapshots = [one for one in _entries(folder / "snapshots") if (one / "config.json").is_file()]
        if snapshots:
            yield (
                max(snapshots, key=lambda one: one.stat().st_mtime),
                folder.name.removeprefix("models--").replace("--", "/"),
            )


def _entries(folder: Path) -> list[Path]:
    """What this account may not read counts as not there."""
    try:
        return sorted(one for one in folder.iterdir() if one.is_dir())
    except OSError:
        return []


def _size(folder: Path) -> int:
    found = 0
    for path in folder.iterdir():
        try:
            found += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # a link to a file that is gone
    return found


def _joined(folder: str | None, more: str) -> str | None:
    return os.path.join(folder, more) if folder else None
