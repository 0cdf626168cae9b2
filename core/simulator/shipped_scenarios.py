"""Finds the scenarios that come with the product: in the repository, or where its wheel puts them."""

from __future__ import annotations

import sysconfig
from pathlib import Path

IN_WHEEL = "share/greenserve/scenarios"  # under the environment's folder: `data-files` in pyproject.toml


def folder() -> Path:
    """Returns the repository's own folder where this runs from it; else the installed one, which may lack."""
    own = Path(__file__).resolve().parents[2] / "scenarios"
    return own if own.is_dir() else Path(sysconfig.get_path("data")) / IN_WHEEL
