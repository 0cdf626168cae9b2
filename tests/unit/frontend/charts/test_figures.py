from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import plotly.graph_objects as go
import pytest

from frontend.charts import carbon_figure, figures
from frontend.charts.decision_marks import decision_marks
from frontend.charts.plot_style import COLOURS, OTHERS_COLOUR, THEMES, Look, site_bar, site_line
from telemetry.selectors import largest_sites
from telemetry.selectors.frames import CarbonFrame, DecisionTick, PowerFrame, SiteCarbon, SitePower, TimeRange
from tests.unit.frontend import frames

LOOK = Look(THEMES["light"], UTC, "UTC")
DARK = Look(THEMES["dark"], ZoneInfo("America/New_York"), "America/New_York")
TICK = DecisionTick(1_015.0, "scale", "not_worth_it", "One <b>bold</b> sentence", "/decisions/7/")
ALL = [
    (figures.power, frames.power),
    (carbon_figure.carbon, frames.carbon),
    (figures.slo, frames.slo),
    (figures.jain, frames.jain),
]


def trace(figure, name, **more):
    (found,) = [t for t in figure["data"] if t["name"] == name and all(t.get(k) == v for k, v in more.items())]
    return found


@pytest.mark.parametrize(("draw", "frame"), ALL)
@pytest.mark.parametrize("look", [LOOK, DARK])
def test_figure_is_strict_json_with_question_source_and_units_when_drawn(draw, frame, look):
    figure = draw(frame(), look)
    json.dumps(figure, allow_nan=False)
    go.Figure(data=figure["data"], layout=figure["layout"])
    assert figure["meta"]["question"].endswith("?")
    assert figure["meta"]["source"]
    assert figure["layout"]["yaxis"]["title"]["text"]
    assert look.zone_name in figure["layout"]["xaxis"]["title"]["text"]
    assert all(t["hovertemplate"] for t in figure["data"] if t.get("hoverinfo") != "skip")


@pytest.mark.parametrize(("draw", "frame"), ALL)
def test_all_charts_share_one_time_axis_when_drawn_for_one_window(draw, frame):
    assert draw(frame(), LOOK)["layout"]["xaxis"]["range"] == ["1970-01-01 00:16:40", "1970-01-01 00:17:23"]


def test_power_is_scaled_and_keeps_gaps_when_a_meter_was_silent():
    figure = figures.power(frames.power(), LOOK)
    assert trace(figure, "East", showlegend=True)["y"] == [1.0, 2.0, None, 1.0]
    assert figure["layout"]["yaxis"]["title"]["text"] == "power, kW"
    assert figure["layout"]["yaxis"]["rangemode"] == "tozero"
    (band,) = [s for s in figure["layout"]["shapes"] if s["type"] == "rect"]
    assert (band["x0"], band["x1"]) == ("1970-01-01 00:17:00", "1970-01-01 00:17:10")


def test_site_has_the_same_colour_in_every_chart():
    power, carbon = figures.power(frames.power(), LOOK), carbon_figure.carbon(frames.carbon(), LOOK)
    for label, colour in (("East", COLOURS[0]), ("West", COLOURS[1])):
        assert {t["marker"]["color"] for t in power["data"] if t["name"] == label} == {colour}
        lines = [t["line"]["color"] for t in carbon["data"] if t["name"] == label and t["type"] == "scatter"]
        assert set(lines) <= {colour}


def test_power_says_since_when_it_is_stale_when_the_ledger_lags():
    window = TimeRange(1_000.0, 1_300.0, 10.0)
    none = (None,) * window.count
    frame = PowerFrame(window, (), metered_until_s=1_200.0)
    meta = figures.power(frame, LOOK)["meta"]
    assert none
    assert (meta["stale"], meta["until"]) == (True, "1970-01-01 00:20:00")


def test_power_is_empty_when_nothing_was_metered():
    assert figures.power(PowerFrame(frames.WINDOW, ()), LOOK)["meta"]["empty"] is True


def test_cap_is_drawn_when_every_site_has_one():
    figure = figures.power(frames.power(cap_w=9_000.0), LOOK)
    assert any(s.get("y0") == 9.0 for s in figure["layout"]["shapes"])
    assert any("cap 9.00" in t["name"] and t["showlegend"] for t in figure["data"])


def test_intensity_breaks_and_forecast_is_dashed_when_the_feed_had_nothing():
    figure = carbon_figure.carbon(frames.carbon(), LOOK)
    actual, forecast = (t for t in figure["data"] if t["name"] == "East" and t["type"] == "scatter")
    assert actual["y"] == [400.0, 400.0, None, None, None, 410.0, 410.0]
    assert actual["connectgaps"] is False
    assert actual["line"]["dash"] == "solid"
    assert forecast["line"]["dash"] != "solid"
    assert forecast["customdata"] == ["1 Jan 00:17:15"] * 2


def carbon_of(**changes) -> CarbonFrame:
    """Two sites; what is asked for is changed of the second."""
    frame = frames.carbon()
    return replace(frame, sites=(frame.sites[0], replace(frame.sites[1], **changes)))


def test_only_the_site_without_a_feed_is_marked_and_named_in_the_chart_of_carbon():
    gap = (False, True, True, False)
    figure = carbon_figure.carbon(carbon_of(unknown=gap, rate_g_per_h=(50.0, None, None, 50.0)), LOOK)
    assert not any(s["type"] == "rect" for s in figure["layout"]["shapes"])
    (dots,) = [s for s in figure["layout"]["shapes"] if s["line"].get("dash") == "2px,2px"]
    assert (dots["x0"], dots["x1"]) == ("1970-01-01 00:16:50", "1970-01-01 00:17:10")
    assert dots["line"]["color"] == COLOURS[1]
    assert figure["meta"]["lacking"] == "West: no carbon feed"
    assert figure["meta"]["stale"] is False
    assert trace(figure, "East", type="bar")["y"] == [100.0, None, 200.0, 300.0]
    assert trace(figure, "West", type="bar")["y"] == [50.0, None, None, 50.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": "a meter", "known_until_s": 500.0}, "West: no feed since 1 Jan 00:08:20"),
        ({"source": "a meter"}, "West: no value from its feed"),
        ({"source": "a meter", "known_until_s": 1_040.0}, ""),
        ({"label": "3 others", "colour": None, "unknown": (True,) * 4}, "3 others: some are not known"),
    ],
)
def test_carbon_says_what_it_lacks_of_a_site(changes, words):
    meta = carbon_figure.carbon(carbon_of(**changes), LOOK)["meta"]
    assert (meta["lacking"], meta["stale"]) == (words, False)


def test_carbon_is_stale_when_no_feed_has_a_recent_value():
    frame = carbon_of(source="a meter", known_until_s=500.0)
    late = replace(frame.sites[0], actual=(), known_until_s=600.0)
    meta = carbon_figure.carbon(replace(frame, sites=(late, frame.sites[1])), LOOK)["meta"]
    assert (meta["stale"], meta["until_said"]) == (True, "1 Jan 00:10:00")


@pytest.mark.parametrize(
    ("attained", "low"), [((0.999, 1.0, None, 1.0), 98), ((0.97, 1.0, None, 1.0), 95), ((0.3, 1.0, None, 1.0), 0)]
)
def test_attainment_axis_starts_below_its_lowest_value_and_says_so(attained, low):
    axis = figures.slo(frames.slo(attained), LOOK)["layout"]["yaxis"]
    assert axis["range"][0] == low
    assert (f"from {low} %" in axis["title"]["text"]) == (low > 0)


def test_objective_is_a_line_and_budget_burn_is_in_the_hover():
    figure = figures.slo(frames.slo(), LOOK)
    assert any(s.get("y0") == pytest.approx(99.0) for s in figure["layout"]["shapes"])
    (line,) = [t for t in figure["data"] if t["name"] == "TTFT"]
    assert line["customdata"][1][0] == pytest.approx(3.0)  # 3 % missed of 1 % allowed
    assert line["y"][2] is None


def test_decision_tick_links_to_its_page_and_cannot_carry_markup():
    ticks = decision_marks(LOOK, [TICK])
    assert ticks["customdata"] == ["/decisions/7/"]
    assert "<b>" not in ticks["text"][0]
    assert "not worth it" in ticks["text"][0]


def test_times_are_those_of_the_chosen_zone():
    assert DARK.time(0.0) == "1969-12-31 19:00:00"


def test_times_are_short_where_even_and_listed_when_the_clock_changes_between_them():
    assert LOOK.grid((0.0, 60.0, 120.0)) == {"x0": "1970-01-01 00:00:00", "dx": 60_000.0}
    berlin = Look(THEMES["light"], ZoneInfo("Europe/Berlin"), "Europe/Berlin")
    change_s = 1_774_746_000.0  # 2026-03-29 01:00 UTC
    assert berlin.grid((change_s - 3_600, change_s))["x"] == ["2026-03-29 01:00:00", "2026-03-29 03:00:00"]


def test_sites_differ_when_there_are_more_than_colours():
    lines = [site_line(place) for place in range(18)]
    assert len(set(lines)) == 18
    assert (lines[0], lines[6][0]) == ((COLOURS[0], "solid"), COLOURS[0])
    bars = [json.dumps(site_bar(LOOK, place)) for place in range(18)]
    assert len(set(bars)) == 18
    assert site_line(None) == (OTHERS_COLOUR, "solid")


DAY_S = 86_400.0
TODAY = replace(LOOK, today=date(2026, 11, 24))
NOON_S = datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp()


def axis_of(look: Look, span_s: float, end_s: float = NOON_S) -> dict:
    window = TimeRange(end_s - span_s, end_s, span_s / 4)
    return figures.power(PowerFrame(window, ()), look)["layout"]["xaxis"]


@pytest.mark.parametrize(
    ("look", "span_s", "end_s", "dated"),
    [
        (TODAY, 900.0, NOON_S, False),
        (TODAY, 0.3 * DAY_S, NOON_S, False),
        (TODAY, 0.6 * DAY_S, NOON_S, True),  # began yesterday
        (TODAY, 7 * DAY_S, NOON_S, True),
        (TODAY, 900.0, NOON_S - DAY_S, True),  # all of it yesterday
        (replace(TODAY, zone=ZoneInfo("Asia/Tokyo")), 900.0, NOON_S + 3 * 3_600, True),  # midnight there: tomorrow
        (LOOK, 900.0, NOON_S, True),
    ],
)
def test_times_have_their_dates_unless_all_of_the_range_is_today(look, span_s, end_s, dated):
    axis = axis_of(look, span_s, end_s)
    assert ("%b" in axis["hoverformat"]) == dated
    hours = next(s["value"] for s in axis["tickformatstops"] if s["dtickrange"][0] == 60_000)
    assert hours == ("%H:%M\n%-d %b" if dated else "%H:%M")


def test_ticks_of_whole_days_are_dates():
    day_ms = 86_400_000
    stops = axis_of(TODAY, 7 * DAY_S)["tickformatstops"]
    (value,) = [s["value"] for s in stops if (s["dtickrange"][0] or 0) <= day_ms <= (s["dtickrange"][1] or day_ms)]
    assert value == "%-d %b"


def many(count: int) -> tuple[PowerFrame, CarbonFrame]:
    """Sites of 100 W, 200 W and so on; the first is silent in the second bucket."""
    window = frames.WINDOW
    watts = [SitePower(f"s{n}", f"S{n}", n, (100.0 * (n + 1),) * 4, (0.0,) * 4, (False,) * 4) for n in range(count)]
    watts[0] = SitePower("s0", "S0", 0, (100.0, None, 100.0, 100.0), (0.0, None, 0.0, 0.0), (False, True, False, False))
    grams = [SiteCarbon(f"s{n}", f"S{n}", n, s.in_use_w, unknown=s.silent) for n, s in enumerate(watts)]
    drawn = largest_sites.names(watts, 5)
    power = PowerFrame(window, largest_sites.powers(watts, drawn), metered_until_s=1_040.0)
    return power, CarbonFrame(window, largest_sites.carbons(grams, drawn))


def test_chart_shows_the_five_largest_and_all_others_added_up_when_there_are_fifty():
    power, carbon = (
        draw(frame, LOOK) for draw, frame in zip((figures.power, carbon_figure.carbon), many(50), strict=True)
    )
    shown = [t for t in power["data"] if t["showlegend"]]
    assert [t["name"] for t in shown] == ["S45", "S46", "S47", "S48", "S49", "45 others"]
    assert shown[-1]["y"] == [103.5, 103.4, 103.5, 103.5]  # kW; what is silent is not in the sum, and a band says so
    assert any(s["type"] == "rect" for s in power["layout"]["shapes"])
    assert power["meta"]["rest"] == ("/sites/", "all 45 other sites")
    bars = [t for t in carbon["data"] if t["type"] == "bar"]
    assert [t["name"] for t in bars] == [t["name"] for t in shown]
    assert carbon["meta"]["lacking"].endswith("45 others: some are not known")
    assert not any(t["name"] == "45 others" for t in carbon["data"] if t["type"] == "scatter")


def test_every_site_is_drawn_when_only_one_would_be_the_others():
    power, _ = many(6)
    assert [site.label for site in power.sites] == ["S0", "S1", "S2", "S3", "S4", "S5"]


def test_worst_objectives_are_drawn_when_there_are_more_than_colours():
    one = frames.slo().series[0]
    series = tuple(replace(one, service=f"s{n}", total_within=30 - n) for n in range(9))
    figure = figures.slo(replace(frames.slo(), series=series), LOOK)
    assert [t["name"] for t in figure["data"]] == [*(f"s{n} TTFT" for n in range(3, 9)), "objective 99 %"]
    assert figure["meta"]["rest"] == ("/services/", "3 further objectives")
