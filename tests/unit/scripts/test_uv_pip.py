"""uv installs from where pip's settings say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import uv_pip

LISTED = """\
:env:.cert='/etc/ssl/ours.crt'
:env:.disable-pip-version-check='1'
global.extra-index-url='file:///mirror/simple\\nhttps://second.example/simple'
global.find-links='/wheels /more'
global.index-url='https://first.example/simple?a=b'
install.cert='/etc/ssl/theirs.crt'
install.trusted-host='second.example'
"""


def test_uv_looks_where_pip_would() -> None:
    assert uv_pip.variables(uv_pip.settings(LISTED)) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://first.example/simple?a=b",
        "UV_INDEX": "file:///mirror/simple https://second.example/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INSECURE_HOST": "second.example",
        "SSL_CERT_FILE": "/etc/ssl/ours.crt",
    }


@pytest.mark.parametrize(
    ("listed", "options"), [("global.no-index='true'", ["--no-index"]), ("global.no-index='0'", [])]
)
def test_no_index_is_asked_when_pip_may_ask_none(listed: str, options: list[str]) -> None:
    assert uv_pip.options(uv_pip.settings(listed)) == options


def test_what_is_set_for_uv_goes_before_what_is_set_for_pip(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\necho "$@" "$UV_INDEX" "$UV_FIND_LINKS"\n')
    uv.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(uv_pip.__file__), str(uv), "install", "-r", "lock.txt"],
        input=LISTED,
        env={"UV_INDEX": "https://uv.example"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout == "pip install -r lock.txt https://uv.example /wheels,/more\n"
