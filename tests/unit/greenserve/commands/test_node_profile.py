"""`greenserve node profile` refuses what it cannot do before it measures anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from greenserve.cli import cli
from greenserve.commands import node_profile
from pools.profiler.session import Order


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tp", "1,3"), "--tp: 3 GPUs cannot share 32 attention heads and 8 KV heads evenly; choose one of 1, 2, 4"),
        (("--config", "nowhere"), "--config: config: 'nowhere' is no folder with a config.json"),
        (("--publish",), "give an access token for http://127.0.0.1:9"),
    ],
)
def test_it_is_refused_before_anything_is_measured(
    options: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREENSERVE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("GREENSERVE_TOKEN", raising=False)
    out = tmp_path / "p.csv"
    command = ["node", "profile", "--model", "Llama3-8B", "--control", "http://127.0.0.1:9", "--out", str(out)]
    refused = CliRunner().invoke(cli, [*command, *options])
    assert refused.exit_code in (1, 2)
    assert words in " ".join(refused.output.split())
    assert not list(tmp_path.iterdir())


def test_profile_is_written_without_a_picture_where_plotly_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_profile, "_has_plotly", lambda: False)
    order = Order(model="Llama3-8B", out=tmp_path / "p.csv")
    node_profile.write_pictures(order, [])
    node_profile._show(order, [])
    said = capsys.readouterr()
    assert "`pip install plotly` adds it" in said.err
    assert said.out == f"Written: {order.out} and beside it .run.csv, .loads.csv, .journal\n"
