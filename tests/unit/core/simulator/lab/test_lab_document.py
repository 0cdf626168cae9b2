from __future__ import annotations

from dataclasses import replace

import pytest

from core.chart_values import Bar, BarChart
from core.simulator.figures.run_figures import ENERGY_KINDS
from core.simulator.lab.bound import Bound
from core.simulator.lab.comparison import Attained
from core.simulator.lab.experiment import Experiment, Row, Run, Table
from core.simulator.lab.experiments import EXPERIMENTS
from core.simulator.lab.found import Found
from core.simulator.lab.lab_charts import chart_of
from core.simulator.lab.lab_document import document, section
from core.simulator.lab.measures import CALCULATED, Calculated, SavingInAll, change, figure, saving, times
from core.simulator.lab.why import Claim, why
from core.simulator.policies import POLICIES


def figures(energy_wh: float, ttft_s: float = 0.2, attainment: float = 0.995):
    return {
        "energy_wh": energy_wh, "carbon_g": None, "slo_attainment": attainment, "gpu_hours": 8.0,
        "ttft_s": {"p99": ttft_s, "p50": 0.1, "mean": 0.1}, "tpot_s": {"p99": None, "p50": 0.02},
        "e2e_s": {"p50": 4.0, "p99": 9.0, "mean": 5.0},
    }  # fmt: skip


RESULTS = {"before": figures(200.0), "after": figures(120.0, 0.3, 0.991)}
ROWS = (
    Row("saving", "fig. 1", "%", 38.0, saving("after", "before")),
    Row(
        "more",
        "fig. 2",
        "times",
        2.5,
        times("after", "before"),
        why("the first takes {energy}", energy=Claim(figure("before", "energy_wh"), 201.0, "Wh")),
    ),
    Row("first tokens", "fig. 3", "%", 10.0, change("after", "before", "ttft_s", "p99")),
)
ONE = Experiment("one", "One <experiment>", "none", (Run("before", "a"), Run("after", "b")), ROWS)


def test_published_stands_beside_simulated_and_what_is_off_is_explained_or_said_to_be_open():
    table = Table("Apart.", ("part", "Wh"), (("idle", "5"),))
    found = Found(RESULTS, bound=Bound(100.0, 4.0, (), 0))
    text = section(replace(ONE, table=lambda _: table), found, "pictures/one.html")
    assert "| saving | 38 % | fig. 1 | 40 % | 99.1 % (99.5 %) † | 1.05 |" in text
    assert "| more | 2.5 times | fig. 2 | 1.67 times | 99.1 % (99.5 %) † | 0.67 |" in text
    assert "| first tokens | 10 % | fig. 3 | 50 % |  | 5.00 |" in text
    assert "- more: the first takes 200 Wh" in text
    assert "- first tokens: not known." in text
    assert "- saving" not in text
    assert "| after | 120 | 0.600 | 0.991 | 0.3 | - | 5 | 8.0 |" in text
    assert "| *bound* | 100 | 0.500 |" in text
    assert "Apart.\n\n| part | Wh |\n|---|---|\n| idle | 5 |\n" in text


def test_runs_count_as_often_as_they_are_said_to_in_a_saving_of_several_with_the_attainment_of_the_worst():
    results = RESULTS | {"night before": figures(100.0), "night": figures(20.0, attainment=0.97)}
    together = SavingInAll((("after", "before", 1.0), ("night", "night before", 3.0)))
    text = section(replace(ONE, rows=(Row("day", "fig. 1", "%", 64.0, together),)), Found(results), "pictures/one.html")
    assert "| day | 64 % | fig. 1 | 64 % | 97.0 % (99.5 %) † | 1.00 |" in text


@pytest.mark.parametrize(
    ("own", "baseline", "words"),
    [
        (0.995, 0.99, "99.5 % (99.0 %)"),
        (0.995, 0.998, "99.5 % (99.8 %) †"),
        (0.97, 0.9, "97.0 % (90.0 %) †"),
        (0.97, None, "97.0 % †"),
        (None, None, "-"),
    ],
)
def test_a_saving_is_marked_when_fewer_requests_are_in_time_than_before_or_than_99_of_100(own, baseline, words):
    assert Attained(own, baseline).words() == words


def test_the_document_opens_with_the_headlines_and_says_what_is_calculated():
    row = Row("by hand", "fig. 4", "W", 10.0, Calculated("by hand", lambda: 10.0))
    one = replace(ONE, rows=(*ROWS, row), headlines={"more": "so much more", "by hand": "by hand"})
    text = document([one], {"one": Found({**RESULTS, CALCULATED: {"by hand": 8.0}})})
    overview = text[: text.index("## One")]
    assert "Not run here" not in overview
    assert "Not run here (`greenserve lab one`): One <experiment>." in document([one], {})
    assert (
        "| One <experiment> | so much more | fig. 2 | 2.5 times | 1.67 times | 99.1 % (99.5 %) † | 0.67 |" in overview
    )
    assert "| One <experiment> | by hand | fig. 4 | 10 W | 8 W, calculated |  | 0.80 | not known. |" in overview


def test_runs_that_could_not_be_done_are_named_and_the_others_stand_when_a_fleet_is_too_small():
    found = Found({"after": RESULTS["after"]}, {"before": "fleet: too small"}, notes=("On other.csv.",))
    text = section(ONE, found, "pictures/one.html")
    assert "On other.csv." in text
    assert "| saving | 38 % | fig. 1 | - |  | - |" in text
    assert "- before could not be run: fleet: too small" in text
    assert "not known" not in text
    assert "| after | 120 | 1.000 |" in text


def test_section_says_why_when_no_run_could_be_done():
    text = section(ONE, Found({}, {"before": "no room", "after": "no room"}), "pictures/one.html")
    assert "pictures/one.html" not in text
    assert "- after could not be run: no room" in text


def test_picture_has_a_bar_for_each_run_and_the_bound():
    chart = chart_of(ONE, RESULTS, Bound(100.0, 4.0, (), 0))
    assert chart.bars == (Bar("before", 0.2), Bar("after", 0.12))
    assert (chart.title, chart.bound) == (ONE.title, (0.1, "bound"))
    own = BarChart("share, %", (Bar("more", 40.0, 2.0),))
    assert chart_of(replace(ONE, chart=lambda _: own), RESULTS).bars == own.bars


class Noting(dict):
    """Results that know which of them were read."""

    def __init__(self, results):
        super().__init__(results)
        self.read = set()

    def __getitem__(self, label):
        self.read.add(label)
        return super().__getitem__(label)

    def items(self):
        self.read |= set(self)
        return super().items()


def test_every_experiment_names_runs_that_there_are_and_every_row_is_of_runs_or_says_that_it_is_calculated():
    for experiment in EXPERIMENTS.values():
        labels = [run.label for run in experiment.runs]
        assert len(set(labels)) == len(labels)
        assert {run.policy.partition("{")[0].strip() for run in experiment.runs} <= set(POLICIES)
        more = {
            **{key: {"p50": 0.1, "p99": 0.2, "mean": 0.1} for key in ("ttft_s", "tpot_s", "itl_s", "e2e_s")},
            "itl_in_time": 0.9,
            "goodput_tokens_s": 9.0,
            "goodput_rps": 9.0,
            "finished": 9,
            "simulated_s": 3.0,
            "iterations": 9,
            "clock_mhz": 900.0,
            "jain_lengths": 0.9,
            "violation_rate": 0.1,
            "carbon_g": 9.0,
            "preemptions": 9,
            "power_w": {"p50": 9.0, "p99": 9.0},
            "energy_wh_by": dict.fromkeys(ENERGY_KINDS, 1.0),
        }
        results = {label: RESULTS["before"] | more | {"energy_wh": 200.0 - n} for n, label in enumerate(labels)}
        results[CALCULATED] = {own.name: 1.0 for own in experiment.calculated}
        for row in experiment.rows:
            noted = Noting(results)
            row.ours(noted)
            assert isinstance(row.ours, Calculated) or noted.read & set(labels), row.label
            row.why.words(results)
        del results[CALCULATED]
        assert chart_of(experiment, results).bars
        assert set(experiment.headlines) <= {row.label for row in experiment.rows}
        assert experiment.table is None or experiment.table(results).rows
