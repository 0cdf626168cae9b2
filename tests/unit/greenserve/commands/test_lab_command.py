from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from core.simulator import shipped_scenarios
from core.simulator.lab import experiments
from core.simulator.lab.experiment import CONVERSATION, Experiment, Row, Run
from core.simulator.lab.measures import figure
from core.simulator.lab.why import Claim, why
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
    out = tiny / "docs" / "results.md"
    result = CliRunner().invoke(command.lab, ["--trace", str(trace), "--out", str(out)])
    assert result.exit_code == 0, result.output
    text = out.read_text()
    assert "On hot.csv, in the place of the Azure conversation hour of 2023: what is published is not of" in text
    assert "The fleet is too small: in 1 of 1 minutes more comes than it carries" in text
    assert "bound*" not in text
    assert "| pool |" in text


DRIFTS = why("it takes {energy}", energy=Claim(figure("pool", "energy_wh"), 1e9, "Wh"))


def test_check_says_what_no_longer_holds_when_document_or_figures_moved(tiny, monkeypatch):
    out = tiny / "results.md"
    assert CliRunner().invoke(command.lab, ["--check", "--out", str(out)]).exit_code == 2
    assert CliRunner().invoke(command.lab, ["--out", str(out)]).exit_code == 0
    checked = CliRunner().invoke(command.lab, ["--check", "--out", str(out)])
    assert (checked.exit_code, "all of it holds" in checked.output) == (0, True)

    out.write_text(out.read_text().replace("](pictures/lab-tiny.html)", "](pictures/lab-tiny.html) by hand"))
    figures = out.with_suffix(".json")
    figures.write_text(figures.read_text().replace('"pool": [', '"other": ['))
    edited = CliRunner().invoke(command.lab, ["--check", "--out", str(out)])
    assert edited.exit_code == 1
    assert "tiny: no figures of pool" in edited.output
    assert "results.md is not what its figures give" in edited.output


def test_the_lab_names_sentence_and_figure_and_ends_with_1_when_what_is_said_no_longer_holds(tiny, monkeypatch):
    rows = (Row("energy", "fig. 1", "Wh", 1.0, figure("pool", "energy_wh"), DRIFTS),)
    monkeypatch.setitem(experiments.EXPERIMENTS, "tiny", replace(experiments.EXPERIMENTS["tiny"], rows=rows))
    out = tiny / "results.md"
    result = CliRunner().invoke(command.lab, ["--out", str(out)])
    assert result.exit_code == 1
    assert "tiny, energy: energy is " in result.output
    assert "written upon 1,000,000,000 Wh ('it takes {energy}')" in result.output
    assert "- energy: not known: what was written of it no longer holds" in out.read_text()


def test_quick_experiments_are_run_and_the_others_stay_as_they_were_when_none_is_named(tiny, monkeypatch):
    long = Experiment("long", "Long", "tiny", (Run("day", "single_pool"),), quick=False)
    monkeypatch.setitem(experiments.EXPERIMENTS, "long", long)
    out = tiny / "results.md"
    assert CliRunner().invoke(command.lab, ["--all", "--out", str(out)]).exit_code == 0
    again = CliRunner().invoke(command.lab, ["--fresh", "--out", str(out)])
    assert "0 runs are known, 2 to do." in again.output
    assert "| day |" in out.read_text()


def test_requests_of_ones_own_have_a_document_of_their_own_a_table_and_a_picture(tiny, monkeypatch):
    monkeypatch.chdir(tiny)
    (tiny / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,9\n1.5,90,20\n")
    (tiny / "rates.csv").write_text("start_s,requests_s\n0,100\n10,300\n")
    traced = Experiment("tiny", "Tiny", "tiny", (Run("pool", "single_pool"),), trace=CONVERSATION)
    monkeypatch.setitem(experiments.EXPERIMENTS, "tiny", traced)
    result = CliRunner().invoke(command.lab, ["tiny", "--trace", "mine.csv"])
    assert result.exit_code == 0, result.output
    assert "Tiny: runs" in result.output
    assert "pictures/lab-tiny.html\nlab-mine.md written, in " in result.output
    both = CliRunner().invoke(
        command.lab, ["tiny", "--rates", "rates.csv", "--scale", "0.02", "--trace", "mine.csv", "--workers", "1"]
    )
    assert both.exit_code == 0, both.output
    assert "On rates.csv with lengths like those of mine.csv, in the place of" in (tiny / "lab-rates.md").read_text()


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
