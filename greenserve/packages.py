"""Are our packages ours? Their names (`core`, `pools`, ...) are short enough for another distribution to have them too.

pip installs such a distribution into the same folders without a word, over our files or ours over its
(docs/adr/0005-names-of-packages.md).
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pools.release import DISTRIBUTION, NODE_DISTRIBUTION, installed

PACKAGES = ("greenserve", "frontend", "scheduler", "telemetry", "pools", "core")
REMEDY = "install GreenServe into a virtual environment of its own"
NODE_REMEDY = (
    f"{NODE_DISTRIBUTION} is installed here, with what a node needs and no more: do this where {DISTRIBUTION} is "
    "installed, which may be another environment of this machine"
)


def of_a_node() -> bool:
    """Says whether this installation is a node's, which lacks what the control plane needs."""
    return installed() == NODE_DISTRIBUTION


def not_ours() -> list[str]:
    """Returns packages that are not beside `greenserve`, or whose first file is not what we installed."""
    home, recorded = Path(__file__).resolve().parents[1], _recorded()
    return [
        name
        for name in PACKAGES
        if (found := _first_file(name)) != home / name / "__init__.py"
        or (found in recorded and not _has_hash(found, recorded[found]))
    ]


def shared() -> Iterator[tuple[str, str]]:
    """Yields packages that another distribution has files in, with its name. It is slow: it reads all file lists."""
    for name, owners in metadata.packages_distributions().items():
        if name in PACKAGES:
            yield from ((name, owner) for owner in sorted(set(owners)) if owner.lower() != installed())


def _first_file(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).resolve() if spec and spec.origin else None


def _recorded() -> dict[Path, metadata.FileHash]:
    """Returns the hashes of our first files in the wheel's RECORD; empty where we were not installed from a wheel."""
    try:
        files = metadata.files(installed()) or []
    except metadata.PackageNotFoundError:
        return {}
    first = {f"{name}/__init__.py" for name in PACKAGES}
    return {Path(str(file.locate())).resolve(): file.hash for file in files if file.hash and str(file) in first}


def _has_hash(path: Path, wanted: metadata.FileHash) -> bool:
    digest = hashlib.new(wanted.mode, path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == wanted.value
