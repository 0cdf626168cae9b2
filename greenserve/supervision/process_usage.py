"""Processor time and memory of a process and all that it started, as Linux counts them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MOST = 1_000  # processes looked at: a fork bomb must not hold the supervisor up


@dataclass(frozen=True, slots=True)
class Usage:
    """`cpu_s` counts children that have ended too, and so never falls; `rss_bytes` counts shared pages in each."""

    cpu_s: float
    rss_bytes: int


def of(pid: int, proc: Path = PROC) -> Usage | None:
    """None when the process is gone, or the system has no /proc."""
    first = _read(proc / str(pid))
    if first is None:
        return None
    ticks, pages = first
    waiting, seen = _children(pid, proc), 1
    while waiting and seen < _MOST:
        child = waiting.pop()
        found = _read(proc / str(child))
        if found is None:
            continue  # it ended meanwhile
        ticks, pages, seen = ticks + found[0], pages + found[1], seen + 1
        waiting += _children(child, proc)
    return Usage(ticks / _TICKS_PER_S, pages * _PAGE_BYTES)


def _read(folder: Path) -> tuple[int, int] | None:
    """Returns (clock ticks used, resident pages). The name in `stat` may have blanks: fields count from its end."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]), int(fields[21])
    except (OSError, ValueError, IndexError):
        return None


def _children(pid: int, proc: Path) -> list[int]:
    try:
        return [
            int(child)
            for task in (proc / str(pid) / "task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (OSError, ValueError):
        return []
