"""What a profiling run has finished, on disk: killed and started again, it goes on where it was.

A line of JSON for each finished step, after a first line that says what is profiled. A torn last line is a step that
was not finished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


class JournalError(ValueError):
    """A journal that cannot be gone on with; the message says what to do."""


class Journal:
    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        """Opens or begins it. Raises JournalError when it is of another run, and OSError."""
        self._path = path
        self.done: dict[str, Rows] = {}
        head = json.loads(json.dumps(head))  # as it will be read: tuples are lists
        self._read(head)
        self._file = path.open("a", encoding="utf-8")
        if path.stat().st_size == 0:
            self._append(head)

    def _read(self, head: Mapping[str, Any]) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))
        lines = whole.decode(errors="replace").splitlines()
        try:
            entries = [json.loads(line) for line in lines]
        except ValueError:
            raise JournalError(f"{self._path} is no journal of a profiling run: move it away") from None
        if entries and entries[0] != head:
            changed = sorted(name for name in head if entries[0].get(name) != head[name])
            raise JournalError(
                f"{self._path} is of another run ({', '.join(changed)} differ): move it away to begin anew, or give "
                "another --out"
            )
        self.done = {entry["step"]: entry["rows"] for entry in entries[1:]}

    def add(self, step: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keeps a finished step; on disk when this returns."""
        self.done[step] = [dict(row) for row in rows]
        self._append({"step": step, "rows": self.done[step]})

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    @property
    def written_at_s(self) -> float:
        """The moment at which its last step was written, in whole Unix seconds."""
        return float(int(self._path.stat().st_mtime))

    def close(self) -> None:
        self._file.close()
