"""What a process uses, from a made-up /proc and from this one."""

from __future__ import annotations

import os
from pathlib import Path

from greenserve.supervision import process_usage


def process(proc: Path, pid: int, ticks: tuple[int, int, int, int], pages: int, children: str = "") -> None:
    task = proc / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    (task / "children").write_text(children)
    fields = ["S", "1", *["0"] * 9, *map(str, ticks), *["0"] * 6, str(pages), "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} (a) name (b) {' '.join(fields)}\n")


def test_children_and_those_that_have_ended_count(tmp_path):
    process(tmp_path, 7, (10, 5, 3, 2), 100, "8 9 ")
    process(tmp_path, 8, (1, 1, 0, 0), 10)
    found = process_usage.of(7, tmp_path)  # 9 has ended meanwhile
    assert found is not None
    assert found.cpu_s == 22 / os.sysconf("SC_CLK_TCK")
    assert found.rss_bytes == 110 * os.sysconf("SC_PAGE_SIZE")


def test_nothing_is_known_of_a_process_that_is_gone(tmp_path):
    assert process_usage.of(7, tmp_path) is None


def test_this_process_uses_something():
    found = process_usage.of(os.getpid())
    assert found is not None
    assert found.cpu_s > 0.0
    assert found.rss_bytes > 1 << 20
