"""Serves plotly.min.js out of the installed package: 4.8 MB that need not be in our repository."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.contrib.staticfiles.utils import matches_patterns
from django.core.files.storage import FileSystemStorage, Storage

PREFIX = "plotly"
FILE = "plotly.min.js"


class PlotlyFinder(BaseFinder):
    """Finds `plotly/plotly.min.js`, and nothing else of the package."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        spec = find_spec("plotly")  # finds without importing: the import takes long
        if spec is None or not spec.submodule_search_locations:
            raise RuntimeError("the package plotly is not installed; run `make install`")
        self.storage = FileSystemStorage(location=Path(spec.submodule_search_locations[0]) / "package_data")
        self.storage.prefix = PREFIX  # type: ignore[attr-defined]

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        found = self.storage.path(FILE) if path == f"{PREFIX}/{FILE}" else None
        return [found] if find_all and found else found or []

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, Storage]]:
        if not matches_patterns(FILE, ignore_patterns or []):
            yield FILE, self.storage
