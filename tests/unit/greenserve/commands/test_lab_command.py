from __future__ import annotations

import pytest
from click.testing import CliRunner

from core.simulator import shipped_scenarios
from core.simulator.lab import experiments, runs
from core.simulator.lab.bound import clairvoyant
from core.simulator.lab.experiment import CONVERSATION, Experiment, Run
from greenserve.commands import lab as command

SCENARIO = """
fleet: {name: node, count: 1, model: Llama2-70B, gpu: H100-SXM-80GB, tp: 8}
workload: {generate: poisson, lengths: azure-conv, rate_rps: 2, duration_s: 20}
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A laboratory of one experiment of two runs, in a folder of its own."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "tiny.yaml").write_text(SCENARIO)
    one = Experiment("tiny", "Tiny", "tiny", (Run("pool", "single_pool"), Run("green", "least_loaded")))
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"tiny": one})
    monkeypatch.setattr(shipped_scenarios, "folder", lambda: tmp_path / "scenarios")
    monkeypatch.setenv("GREENSERVE_VAR", str(tmp_path / "var"))
    return tmp_path


def test_results_are_written_and_done_runs_are_known_when_asked_again(tiny):
    out = tiny / "docs" / "results.md"
    first = CliRunner().invoke(command.lab, ["--out", str(out)])
    assert first.exit_code == 0, first.output
    assert "0 runs are known, 2 to do." in first.output
    assert "| green |" in out.read_text()
    assert "[energy of each run, kWh (simulated)](pictures/lab-tiny.html)" in out.read_text()
    assert '"y": ["pool", "green"]' in (tiny / "docs" / "pictures" / "lab-tiny.html").read_text()
    written = out.read_text()
    again = CliRunner().invoke(command.lab, ["tiny", "--out", str(out)])
    assert "2 runs are known, 0 to do." in again.output
    assert out.read_text() == written


def test_others_are_written_and_it_is_said_which_run_cannot_be_done(tiny, monkeypatch):
    two = Experiment("tiny", "Tiny", "tiny", (Run("pools", "multi_pool"), Run("green", "least_loaded")))
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"tiny": two})
    out = tiny / "docs" / "results.md"
    result = CliRunner().invoke(command.lab, ["--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "1 run could not be done; " in result.output
    assert "- pools could not be run: classes: multi_pool needs at least two request classes" in out.read_text()
    assert "| green |" in out.read_text()


def test_another_trace_is_said_to_be_one_and_a_fleet_that_is_too_small_for_it(tiny, monkeypatch):
    trace = tiny / "hot.csv"
    rows = [f"2023-11-16 18:00:{n // 1000:02d}.{n % 1000:03d}000,1000,200\n" for n in range(0, 4000, 2)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    traced = Experiment("tiny", "Tiny", "tiny", (Run("pool", "single_pool"),), trace=CONVERSATION, bound=True)
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"tiny": traced})
    monkeypatch.setattr(runs, "clairvoyant", lambda scenario, blocks, tail: clairvoyant(scenario, blocks))
    out = tiny / "docs" / "results.md"
    result = CliRunner().invoke(command.lab, ["--trace", str(trace), "--out", str(out)])
    assert result.exit_code == 0, result.output
    text = out.read_text()
    assert "On hot.csv, in the place of the Azure conversation hour of 2023: what is published is not of" in text
    assert "The fleet is too small: in 1 of 1 minutes more comes than it carries" in text
    assert "bound*" not in text
    assert "| pool |" in text


def test_error_says_what_there_is_when_the_experiment_is_unknown(tiny):
    result = CliRunner().invoke(command.lab, ["dynamo"])
    assert result.exit_code == 2
    assert "there is no experiment 'dynamo'; there are: tiny" in result.output


def test_error_says_where_the_trace_is_when_it_is_missing():
    result = CliRunner().invoke(command.lab, ["dynamollm"])
    assert result.exit_code == 2
    assert "dynamollm runs on a trace: give --trace (https://" in result.output


def test_experiments_are_listed():
    result = CliRunner().invoke(command.lab, ["--list"])
    assert result.exit_code == 0
    assert "common" in result.output
