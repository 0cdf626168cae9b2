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

DISTRIBUTION = "greenserve"
PACKAGES = ("greenserve", "frontend", "scheduler", "telemetry", "pools", "core")
REMEDY = "install GreenServe into a virtual environment of its own"


def not_ours() -> list[str]:
    """Returns packages that are not beside `greenserve`, or whose first file is not what we installed."""
    home = Path(__file__).resolve().parents[1]
    return [
        name
        for name in PACKAGES
        if (found := _first_file(name)) != home / name / "__init__.py" or not _as_installed(found)
    ]


def shared() -> Iterator[tuple[str, str]]:
    """Yields packages that another distribution has files in, with its name. It is slow: it reads all file lists."""
    for name, owners in metadata.packages_distributions().items():
        if name in PACKAGES:
            yield from ((name, owner) for owner in sorted(set(owners)) if owner.lower() != DISTRIBUTION)


def _first_file(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).resolve() if spec and spec.origin else None


def _as_installed(path: Path) -> bool:
    """Compares the file with the hash in the wheel's RECORD; true where we were not installed from a wheel."""
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return True
    for file in files:
        if file.hash is not None and Path(str(file.locate())).resolve() == path:
            digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
            return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value
    return True
