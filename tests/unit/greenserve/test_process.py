from __future__ import annotations

import os
from pathlib import Path

import pytest

from greenserve.process import Identity, exit_reason, last_words, tail


def test_identity_is_alive_only_for_the_process_it_was_taken_of() -> None:
    mine = Identity.of(os.getpid())
    assert mine
    assert mine.alive()
    assert not Identity(mine.pid, mine.start_ticks + 1, mine.boot_id).alive()
    assert Identity.of(2**22 + 1) is None


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "exit status 0"), (3, "exit status 3"), (-9, "killed by SIGKILL"), (-250, "killed by signal 250")],
)
def test_exit_is_said_in_words(status: int, words: str) -> None:
    assert exit_reason(status) == words


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "no message"),
        ("one\n\ntwo\n\n", "two"),
        ("x FATAL:  bad files\nLOG:  shut down", "x FATAL:  bad files"),
        ("a.b.OperationalError: refused\n\tIs the server running?", "a.b.OperationalError: refused"),
    ],
)
def test_most_telling_line_is_chosen(text: str, line: str) -> None:
    assert last_words(text) == line


def test_tail_gives_the_last_lines_when_the_log_is_long(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert tail(path, 3) == ""
    path.write_text("".join(f"{n}\n" for n in range(100_000)))
    assert tail(path, 2) == "99998\n99999"
