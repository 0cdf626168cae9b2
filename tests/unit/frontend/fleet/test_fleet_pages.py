"""The pure parts of the fleet's pages: lists, lines, the frontier, the sentence about what would be cheaper."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC

import pytest
from django.test import RequestFactory

from core.engine import measured
from core.engine.measured import engine_costs
from core.engine.profiles import profiles_of
from core.types import Limits, Source
from frontend.charts.line_figures import LineChart, PlotLine, figure, table
from frontend.charts.plot_style import THEMES, Look
from frontend.decisions import decision_facts
from frontend.fleet import feeds, frontier
from frontend.fleet.listing import Column, listing
from telemetry.selectors.frames import IntensityStep, TimeRange
from tests.fakes.engine_profiles import ENGINE, GPU, MODEL, rows

LOOK = Look(THEMES["light"], UTC, "UTC")
WINDOW = TimeRange(0.0, 40.0, 10.0)


@dataclass(frozen=True)
class Row:
    name: str
    power_w: float | None
    kind: str = "a"


ROWS = [Row("b", 5.0), Row("a", None), Row("c", 9.0, "z")]
COLUMNS = (Column("name", "Name"), Column("power_w", "Power", number=True))


def names(query: str) -> list[str]:
    request = RequestFactory().get(f"/{query}")
    found = listing(request, ROWS, COLUMNS, search=lambda row: row.name, filters={"kind": "Kind"})
    return [row.name for row in found.page.object_list]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["b", "a", "c"]),
        ("?sort=name", ["a", "b", "c"]),
        ("?sort=-power_w", ["c", "b", "a"]),
        ("?sort=power_w", ["b", "c", "a"]),
        ("?sort=__class__", ["b", "a", "c"]),
        ("?kind=z", ["c"]),
        ("?kind=nothing", []),
        ("?q=B", ["b"]),
    ],
)
def test_listing_sorts_and_narrows_when_the_url_says_so(query: str, expected: list[str]) -> None:
    assert names(query) == expected


def test_line_chart_keeps_gaps_and_marks_silence_when_values_are_missing() -> None:
    chart = LineChart(
        "How much?", "W", "made up", WINDOW, (PlotLine("in use", (1_000.0, None, 3_000.0, None)),), prefixed=True,
        silent=(False, True, False, False),
    )  # fmt: skip
    drawn = figure(chart, LOOK)
    assert drawn["data"][0]["y"] == [1.0, None, 3.0, None]
    assert drawn["layout"]["yaxis"]["title"]["text"] == "kW"
    assert drawn["layout"]["shapes"][-1]["x0"] == "1970-01-01 00:00:10"
    assert drawn["meta"]["until"] == "1970-01-01 00:00:30"
    assert table(chart).splitlines()[:3] == [
        "start_utc,in use [W]",
        "1970-01-01T00:00:00Z,1000.0",
        "1970-01-01T00:00:10Z,",
    ]


def test_steps_are_averaged_over_what_is_known_when_they_cross_buckets() -> None:
    steps = (IntensityStep(0.0, 15.0, 100.0), IntensityStep(15.0, 25.0, 300.0), IntensityStep(25.0, 40.0, None))
    assert feeds.on_buckets(steps, WINDOW) == (100.0, 200.0, 300.0, None)


def test_frontier_has_no_point_that_another_beats_when_points_are_mixed() -> None:
    def point(label: str, energy_j: float, latency_s: float) -> frontier.Point:
        return frontier.Point(label, "p/LL", "A100-80GB", "published", "made up", energy_j, latency_s, 1.0)

    points = [point("slow", 1.0, 9.0), point("worse", 6.0, 6.0), point("fast", 5.0, 2.0), point("mid", 3.0, 5.0)]
    assert [p.label for p in frontier.on_frontier(points)] == ["fast", "mid", "slow"]


def test_label_hides_no_point_when_two_modes_are_close() -> None:
    def point(label: str, energy_j: float, latency_s: float) -> frontier.Point:
        return frontier.Point(label, "p/LL", "A100-80GB", "published", "made up", energy_j, latency_s, 1.0)

    points = [point("x/TP8", 92.0, 2.1), point("x/TP2", 39.0, 7.4), point("y/TP4", 43.0, 8.0)]
    drawn, _ = frontier.frontier(points, LOOK, "E2E", "LL")
    assert drawn["data"][1]["textposition"] == ["top right", "bottom left", "bottom right"]


def test_field_is_blank_where_no_rate_keeps_the_limits_when_the_model_is_large() -> None:
    cells = frontier.grid("Llama3-70B", "A100-80GB", "vllm-v1", 512.0, 256.0, Limits(tpot_s=0.06))
    assert all(cell.energy_per_token_j is None for cell in cells if cell.tp == 1)
    known = [cell.energy_per_token_j for cell in cells if cell.energy_per_token_j is not None]
    assert known
    assert all(0.05 < value < 50.0 for value in known)


def alternative(label: str, grams: float, **more: object) -> dict[str, object]:
    return {"label": label, "carbon_gco2e": grams, "feasible": True, "failed": None, "chosen": False, **more}


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            alternative("TP8", 80.0, feasible=False, failed="capacity of class LL"),
            "TP8 would take 20.0\u00a0% less carbon, but it was ruled out: capacity of class LL.",
        ),
        (
            alternative("TP8", 100.0001),
            "Nothing that was weighed takes less carbon: the next best, TP8, takes as much.",
        ),
        (
            alternative("TP8", 150.0),
            "Nothing that was weighed takes less carbon: the next best, TP8, takes 50.0\u00a0% more.",
        ),
    ],
)
def test_sentence_says_why_nothing_cheaper_was_taken(other: dict[str, object], sentence: str) -> None:
    assert decision_facts.why_not_cheaper([alternative("TP4", 100.0, chosen=True), other], "carbon") == sentence


def test_no_sentence_is_made_when_nothing_else_was_weighed() -> None:
    assert decision_facts.why_not_cheaper([alternative("TP4", 100.0, chosen=True)]) == ""


def test_energy_over_clocks_follows_the_profile_that_plans_go_by() -> None:
    asked = (MODEL, GPU, ENGINE, 500.0, 200.0, Limits())
    before = {(cell.tp, cell.mhz): cell for cell in frontier.grid(*asked)}
    (profile,) = profiles_of(rows(1.5, 1.0, batches=(1, 64, 256), contexts=(100, 4000)))
    measured.publish([profile])
    try:
        after = {(cell.tp, cell.mhz): cell for cell in frontier.grid(*asked)}
        assert {cell.source for key, cell in after.items() if key[0] == 1 and cell.mhz >= 600.0} == {
            Source.INTERPOLATED
        }
        for key, cell in after.items():
            old = before[key].energy_per_token_j
            assert old is not None
            assert cell.energy_per_token_j == pytest.approx(old * (1.5 if key[0] == 1 else 1.0), rel=0.1)
        plan = engine_costs(MODEL, GPU, 1, ENGINE)
        assert after[1, 1410.0].rps == plan.max_rps(500.0, 200.0, 1410.0, Limits())
        drawn, table_of = frontier.heat(
            list(after.values()),
            LOOK,
            GPU,
            "500 tokens",
            {1: "measured 3 h ago", 2: "modelled", 4: "modelled", 8: "modelled"},
        )
        assert "TP1: measured 3 h ago; TP2, TP4, TP8: modelled; 500 tokens" in str(drawn["meta"])
        assert "interpolated" in table_of
    finally:
        measured.publish(())
