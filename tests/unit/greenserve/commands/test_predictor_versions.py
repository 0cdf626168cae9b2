"""`greenserve predictor list`, `use`, `rollback` and `off`."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from core.ports import RequestFeatures
from core.predictors.text_predictor import LengthPredictor
from greenserve.cli import cli
from pools.lengths.encoder.versions import Versions
from pools.lengths.kept_state import KeptState
from tests.fakes.encoder_versions import publish


@pytest.fixture
def ask(tmp_path, monkeypatch):
    monkeypatch.setenv("GREENSERVE_VAR", str(tmp_path))
    return lambda *words: CliRunner().invoke(cli, ["predictor", *words])


def test_versions_are_listed_used_rolled_back_and_taken_out_of_use(ask, tmp_path):
    versions = Versions(tmp_path)
    publish(versions), publish(versions)
    assert ask("use", "chat", "1").output == "chat 1 is in use for all services.\n"
    assert ask("use", "chat", "--service", "chat-70b").output == "chat 2 is in use for chat-70b.\n"
    listed = ask("list").output.splitlines()
    assert [line[:8] for line in listed] == ["  chat 1", "* chat 2", "In use f"]
    assert "5 classes, accuracy 0.40 (always the same class: 0.20), recall of the longest 0.50" in listed[1]
    assert ask("rollback", "chat").output == "chat 1 is in use for chat-70b.\n"
    assert ask("off").output == "The encoder is out of use.\n"
    assert ask("off").output == "No encoder was in use.\n"


def test_each_says_the_same_as_json(ask, tmp_path):
    publish(Versions(tmp_path))
    row = {"name": "chat", "version": 1, "services": None, "earlier": []}
    assert json.loads(ask("use", "chat", "--json").output) == {"in_use": row}
    listed = json.loads(ask("list", "--json").output)
    assert listed["in_use"] == row
    assert [(one["version"], one["manifest"]["scores"]["p99_ms"]) for one in listed["versions"]] == [(1, 2.0)]
    assert json.loads(ask("off", "--json").output) == {"in_use": None, "was_in_use": True}


def test_what_was_learned_while_serving_is_listed_and_gone_back_to(ask, tmp_path):
    kept = KeptState(tmp_path / "lengths", LengthPredictor.restored, LengthPredictor)
    (tmp_path / "lengths").mkdir()
    taught, yesterday = LengthPredictor(), datetime.now(UTC) - timedelta(days=1)
    for number in range(80):
        taught.observe("chat", 1, taught.look([f"a prompt {number}"]), 10, RequestFeatures(True, 0.0), 5 + number)
    kept.write(taught.state())
    os.utime(tmp_path / "lengths" / "lengths.npz", (yesterday.timestamp(),) * 2)
    kept.recall()
    kept.write(LengthPredictor().state())
    day = str(yesterday.date())
    assert f"learned while serving, until {day}: " in ask("list").output
    assert [one["until"] for one in json.loads(ask("list", "--json").output)["learned"]] == [day]
    assert ask("rollback", "--learned").output == f"The predictor goes on with what it had learned until {day}.\n"
    assert kept.newest().errors().keys() == taught.errors().keys() != set()
    refused = ask("rollback", "--learned")
    assert (refused.exit_code, "keeps nothing" in refused.output) == (1, True)
    assert "Name an encoder, or give --learned." in ask("rollback").output


def test_what_cannot_be_ends_with_one_line(ask):
    for words in (("use", "chat"), ("rollback", "chat")):
        found = ask(*words)
        assert found.exit_code == 1
        assert found.output.startswith("greenserve: ")
        assert found.output.count("\n") == 1
    assert ask("list").output == "No encoder was trained yet.\n"
