"""The kept figures: written and read, and those of the repository beside its document."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.simulator.lab import kept, lab_document
from core.simulator.lab.bound import Bound
from core.simulator.lab.comparison import drifted
from core.simulator.lab.decomposition import Decomposition
from core.simulator.lab.experiments import EXPERIMENTS
from core.simulator.lab.found import Found
from core.simulator.lab.measures import CALCULATED
from core.simulator.lab.runs import Given, job_of

DOCUMENT = Path(__file__).parents[5] / "docs" / "results.md"
FIGURES = DOCUMENT.with_suffix(".json")
CHEAP = {  # of less than two seconds each
    "freesh-orders": "LL, LLF",
    "freesh-miad": "MIAD (2, 100)",
    "freesh": "baseline, pools of partition 1",
    "muserve-order": "SJF, many",
    "dynaserve": "dynaserve, 8192, 32, 1/s",
}


@pytest.fixture(scope="module")
def committed():
    return kept.read(FIGURES)


def test_figures_are_read_as_they_were_written_rounded_to_six_digits(tmp_path):
    results = {"a run": {"energy_wh": 1234.56789, "ttft_s": {"p50": 1 / 3}, "finished": 7}}
    bound = Bound(10.0, 2.0, (), 1, 3.0, keeps=False)
    parts = Decomposition(1.0, 2.0, 3.0, 4.0)
    found = Found({**results, CALCULATED: {"by hand": 2 / 3}}, {"b": "too small"}, bound, parts, ("On other.csv.",))
    kept.write(tmp_path / "one.json", {"one": found})
    read = kept.read(tmp_path / "one.json")["one"]
    assert read.runs["a run"]["energy_wh"] == 1234.57
    assert read.runs["a run"]["ttft_s"] == {"p50": 0.333333, "p99": None, "mean": None}
    assert read.runs["a run"]["finished"] == 7
    assert read.results[CALCULATED] == {"by hand": 0.666667}
    assert (read.bound, read.decomposition, read.notes) == (bound, parts, found.notes)
    assert read.failed == found.failed
    kept.write(tmp_path / "two.json", {"one": read})
    assert (tmp_path / "two.json").read_text() == (tmp_path / "one.json").read_text()


def test_error_names_the_file_when_it_has_no_figures(tmp_path):
    (tmp_path / "one.json").write_text('{"columns": []}')
    with pytest.raises(kept.KeptError, match=r"one.json: no figures of the laboratory"):
        kept.read(tmp_path / "one.json")
    assert kept.read(tmp_path / "none.json") == {}


def test_the_document_is_what_its_figures_give(committed):
    written = lab_document.plain(DOCUMENT.read_text(encoding="utf-8"))
    assert written == lab_document.document(EXPERIMENTS.values(), committed)


def test_all_that_is_said_of_figures_holds(committed):
    assert [words for name, found in committed.items() for words in drifted(EXPERIMENTS[name], found.results)] == []


def test_every_run_has_figures_when_its_experiment_is_in_the_document(committed):
    assert kept.lacks([EXPERIMENTS[name] for name in committed], committed) == []


@pytest.mark.parametrize(("name", "label"), CHEAP.items())
def test_a_run_has_the_kept_figures_when_it_is_done_again(committed, name, label):
    experiment = EXPERIMENTS[name]
    run = next(run for run in experiment.runs if run.label == label)
    again = dict(zip(kept.COLUMNS, kept.row(job_of(experiment, run, Given()).run()), strict=True))
    known = dict(zip(kept.COLUMNS, kept.row(committed[name].runs[label]), strict=True))
    differs = {column: (value, known[column]) for column, value in again.items() if value != known[column]}
    differs.pop(kept.WALL, None)
    assert not {c: pair for c, pair in differs.items() if None in pair or pair[0] != pytest.approx(pair[1], rel=1e-5)}
