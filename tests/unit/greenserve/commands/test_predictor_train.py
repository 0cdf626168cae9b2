"""`greenserve predictor train` where it cannot train."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from greenserve.cli import cli
from pools.lengths.encoder import needs


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.setenv("GREENSERVE_VAR", str(tmp_path))
    (tmp_path / "rows.csv").write_text("prompt,tokens\nwhat,3\n")
    return lambda *words: CliRunner().invoke(cli, ["predictor", "train", "--data", str(tmp_path / "rows.csv"), *words])


def test_without_the_extra_it_says_what_to_install(train, tmp_path, monkeypatch):
    monkeypatch.setattr(needs, "find_spec", lambda name: None)
    found = train()
    assert found.exit_code == 1
    assert (
        found.output
        == 'greenserve: to train an encoder needs torch, onnx, onnxruntime: pip install "greenserve[learned]"\n'
    )
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
