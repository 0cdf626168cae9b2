"""Scenarios changed, and runs compared: what needs no database."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from core.simulator.scenario.scenario import parse_scenario
from core.simulator.site_series import Site, bin_s
from frontend.charts.plot_style import THEMES, Look
from frontend.whatif import plots
from scheduler.whatif import comparing, scenario_changes, scenario_documents, shipped_scenarios
from scheduler.whatif.errors import BadStudy
from scheduler.whatif.scenario_changes import Changes
from scheduler.whatif.scenario_documents import RunSpec
from tests.fakes.studies import tiny

LOOK = Look(THEMES["dark"], UTC, "UTC")

CSV = b"start,value\n2026-01-01T00:00:00+00:00,300\n2026-01-01T00:05:00+00:00,\n2026-01-01T00:10:00+00:00,-10\n"


def figures(energy_wh: float, attainment: float | None, carbon_g: float | None = None) -> dict[str, Any]:
    return {"energy_wh": energy_wh, "slo_attainment": attainment, "carbon_g": carbon_g, "ttft_s": {"p99": 1.0}}


def test_changes_are_put_over_a_scenario_and_leave_it_as_it_was() -> None:
    document = tiny(
        sites={"site": {"carbon_g_per_kwh": {"csv": "c.csv"}, "usd_per_kwh": [0.1, 0.2], "gpus": {"A100-80GB": 2}}},
        classes=[{"name": "all", "slo": {"ttft_s": 0.1, "tpot_s": 0.01}}],
    )
    document["fleet"][0]["site"] = "site"
    otherwise = Changes(
        rate_scale=2.0,
        duration_s=10.0,
        gpus={"site": {"A100-80GB": 6}},
        carbon_scales={"site": 0.5},
        price_scales={"site": 3.0},
        pues={"site": 1.4},
        slo={"ttft_s": 2.0},
    )

    found, files = scenario_changes.put(document, {"c.csv": CSV}, otherwise)

    assert found["workload"]["rate_scale"] == 2.0
    assert found["workload"]["duration_s"] == 10.0
    assert found["fleet"][0]["count"] == 6
    assert found["sites"]["site"]["usd_per_kwh"] == pytest.approx([0.3, 0.6])
    assert found["sites"]["site"]["pue"] == 1.4
    assert files["c.csv"].decode().splitlines()[1:] == [
        "2026-01-01T00:00:00+00:00,150.0",
        "2026-01-01T00:05:00+00:00,",
        "2026-01-01T00:10:00+00:00,-5.0",
    ]
    assert found["classes"][0]["slo"] == {"ttft_s": 2.0, "tpot_s": 0.01}
    assert document["fleet"][0]["count"] == 2
    assert "pue" not in document["sites"]["site"]


def test_groups_are_the_fleet_again_and_nodes_are_forgotten_when_people_set_them_otherwise() -> None:
    document = tiny(
        sites={"site": {"gpus": {"A100-80GB": 6, "V100-32GB": 3}, "nodes": {"A100-80GB": [4, 2], "V100-32GB": [2, 1]}}},
        cut_fleet=True,
    )
    name = document["fleet"][0].get("name", "node")

    more, _ = scenario_changes.put(document, {}, Changes(gpus={"site": {"A100-80GB": 8, "V100-32GB": 3}}))
    own, _ = scenario_changes.put(document, {}, Changes(instances={name: 3}))

    assert (more["cut_fleet"], more["sites"]["site"]["nodes"]) == (True, {"V100-32GB": [2, 1]})
    assert (own["cut_fleet"], own["sites"]["site"]["nodes"]) == (False, document["sites"]["site"]["nodes"])


def test_a_runs_policy_keeps_the_scenarios_keys_when_it_has_its_name() -> None:
    document = tiny(policy={"name": "freesh", "alpha": 1.3})

    own = scenario_documents.for_run(document, RunSpec("freesh", {"order": "fcfs"}, ("fleet.count=5",)))
    other = scenario_documents.for_run(document, RunSpec("single_pool"))

    assert own["policy"] == {"name": "freesh", "alpha": 1.3, "order": "fcfs"}
    assert own["fleet"][0]["count"] == 5
    assert other["policy"] == {"name": "single_pool"}
    for line in ("freesh {order: fcfs, loops: [scale]}", "freesh {order: fcfs} fleet.count=8", "freesh seed=2"):
        assert scenario_documents.run_spec(line).title == line
    with pytest.raises(BadStudy, match="write NAME, NAME"):
        scenario_documents.run_spec("freesh {order: fcfs} fleet.count")


@pytest.mark.parametrize("text", ["a: .inf", "a: 1.0e+300", "a: [" * 40 + "]" * 40, "- 1", "a: b: c", "\x00"])
def test_a_text_is_refused_when_it_is_no_scenario_that_can_be_stored(text: str) -> None:
    with pytest.raises(BadStudy, match="scenario"):
        scenario_documents.read_text(text)


def test_every_preset_is_a_scenario() -> None:
    names = [preset.name for preset in shipped_scenarios.available()]

    assert "dynamollm-70b-h100" in names
    for name in names:
        parse_scenario(shipped_scenarios.load(name), shipped_scenarios.folder() / f"{name}.yaml")


def test_ratios_are_to_the_first_run_and_unknown_stays_unknown() -> None:
    rows = comparing.compared([(0, "a", figures(10.0, 0.9)), (2, "b", figures(5.0, None, 3.0))])

    assert rows[1].ratios[0] == 0.5
    assert rows[1].values[1] == 3.0
    assert rows[1].ratios[1] is None
    assert rows[1].ratios[4] is None


def test_a_run_is_unbeaten_when_no_other_takes_less_and_attains_more() -> None:
    assert comparing.unbeaten([(1.0, 0.9), (2.0, 0.9), (2.0, 0.99), (3.0, 0.95)]) == [True, False, True, False]


def test_each_dot_of_the_pareto_plot_opens_its_run() -> None:
    runs = [
        plots.Shown(0, "one <b>", figures(1_500.0, 0.99), {}, "/what-if/1/runs/0/"),
        plots.Shown(1, "two", figures(900.0, None), {}, "/what-if/1/runs/1/"),
    ]

    found = plots.pareto(runs, "energy", "EUR", 0.95, LOOK)

    dots = [trace for trace in found["data"] if "customdata" in trace]
    assert [(dot["x"], dot["y"], dot["customdata"]) for dot in dots] == [([1.5], [99.0], ["/what-if/1/runs/0/"])]
    assert "<b>" not in dots[0]["hovertemplate"]
    assert found["layout"]["xaxis"]["title"]["text"] == "energy, kWh"
    assert plots.pareto(runs, "cost", "EUR", 0.95, LOOK)["meta"]["empty"]


def test_a_line_stands_at_the_objective_and_is_within_the_axis() -> None:
    runs = [plots.Shown(0, "one", figures(1_500.0, 0.999), {}, "")]
    layout = plots.pareto(runs, "energy", "EUR", 0.95, LOOK)["layout"]
    (line,), (words,) = layout["shapes"], layout["annotations"]
    assert (line["y0"], line["y1"], words["y"], words["text"]) == (95.0, 95.0, 95.0, "objective 95 %")
    assert layout["yaxis"]["range"][0] < 95.0


@pytest.mark.parametrize(
    ("attained", "of_services", "kept", "words"),
    [
        (0.99, {}, True, "keeps 99 %"),
        (0.985, {"chat": 0.985}, False, "misses 99 %"),
        (0.995, {"chat": 0.999, "code": 0.9}, False, "misses 99 % at code"),
        (0.995, {"chat": 0.999, "code": None}, True, "keeps 99 %"),
        (None, {}, None, "no objective"),
    ],
)
def test_each_run_says_whether_it_keeps_the_objective(
    attained: float | None, of_services: dict[str, float | None], kept: bool | None, words: str
) -> None:
    own = figures(1.0, attained) | {"by_service": {name: {"slo_attainment": x} for name, x in of_services.items()}}
    assert comparing.verdict(own, 0.99) == comparing.Verdict(kept, words)
    assert words in comparing.as_csv([(0, "a", own)], "EUR", 0.99)
    assert comparing.as_json([(0, "a", own)], "EUR", 0.99)["runs"][0]["keeps_objective"] is kept


def test_only_dots_that_are_not_beaten_are_named_when_there_are_many() -> None:
    runs = [plots.Shown(n, str(n), figures(1_000.0 + n, 0.99), {}, f"/what-if/1/runs/{n}/") for n in range(7)]
    modes = [dot["mode"] for dot in plots.pareto(runs, "energy", "EUR", 0.95, LOOK)["data"] if "customdata" in dot]
    assert modes == ["markers+text", *["markers"] * 6]
    few = [dot["mode"] for dot in plots.pareto(runs[:6], "energy", "EUR", 0.95, LOOK)["data"] if "customdata" in dot]
    assert few == ["markers+text"] * 6


def test_bars_have_room_for_their_figures_and_names() -> None:
    runs = [plots.Shown(n, str(n), figures(1_000.0 + n, 0.99), {}, "") for n in range(17)]
    few, many = (plots.energy(own, 1_500.0, LOOK)["layout"] for own in (runs[:16], runs))
    assert few["xaxis"]["range"] == [0.0, pytest.approx(1.8)]
    assert few["yaxis"]["dtick"] == 1
    assert "dtick" not in many["yaxis"]


def by_site_series(**power_w: list[float | None]) -> dict:
    return {"step_s": 10.0, "end_s": 20.0, "sites": {name: {"power_w": own} for name, own in power_w.items()}}


def test_sites_of_a_run_have_the_fleets_colours_and_others_what_is_free():
    run = plots.Shown(0, "one", {}, by_site_series(moon=[1.0, 2.0], berlin=[3.0, 4.0]), "")
    lines = plots.by_site(run, "power", {"berlin": 0, "oslo": 1}, LOOK)["data"]
    assert {line["name"]: line["line"]["color"] for line in lines} == {
        "moon": plots.colour(1),
        "berlin": plots.colour(0),
    }


def test_site_of_which_nothing_is_known_is_left_out_of_the_sum_and_named():
    run = plots.Shown(0, "one", {}, by_site_series(moon=[None, None], berlin=[3.0, None], oslo=[1.0, 1.0]), "")
    figure = plots.over_time([run], "power", LOOK)
    assert figure["data"][0]["y"] == [4.0, None]
    assert figure["layout"]["xaxis"]["unifiedhovertitle"]["text"].endswith("} s")  # not a bare number
    assert figure["meta"]["lacking"] == "moon: not known"


@pytest.mark.parametrize(("most_s", "expected_s"), [(float("inf"), 3600.0), (1000.0, 900.0), (7.0, 6.0), (0.2, 1.0)])
def test_bins_are_as_fine_as_asked_for_and_divide_the_hour(most_s: float, expected_s: float) -> None:
    assert bin_s([Site("a")], most_s) == expected_s
