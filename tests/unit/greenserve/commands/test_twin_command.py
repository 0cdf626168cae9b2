from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenserve.commands.twin import twin


def test_nothing_is_sent_where_no_gateway_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens there
        port = taken.getsockname()[1]
        monkeypatch.setenv("GREENSERVE_GATEWAY_PORT", str(port))
        (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,700,20\n")
        found = CliRunner().invoke(twin, ["--trace", str(tmp_path / "mine.csv"), "--policy", "freesh"])
    assert found.exit_code == 1
    assert f"no gateway is ready at http://127.0.0.1:{port}/v1" in found.output
    assert "GREENSERVE_GATEWAY_PORT" in found.output
