from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC
from functools import partial
from pathlib import Path

import plotly.graph_objects as go
import pytest

from core.chart_values import COLOURS, Bar, BarChart, Line, LinePanel, LinePanels, Stack, StackedBars
from frontend.charts.figure_page import write_page
from frontend.charts.plot_style import FORECAST_DASH, THEMES, Look
from frontend.charts.spark_figure import spark
from frontend.charts.value_figures import bars, panels, stacked, stacked_table
from telemetry.selectors.frames import TimeRange

LOOK = Look(THEMES["light"], UTC, "UTC")
SHARES = BarChart("share </script>, %", (Bar("more", 40.0, 2.0), Bar("less", -10.0, 1.0)), "What </script> does")
PANELS = LinePanels(
    "A profile",
    "a test",
    "batch",
    (
        LinePanel("time, ms", (Line("900 MHz", [1, 6], [2.0, None]), Line("longer", [1, 6], [3.0, 4.0], 1, True))),
        LinePanel("power, W", (Line("900 MHz", [1, 6], [200.0, 210.0]),)),
    ),
    doubling=True,
    marked=True,
)


def test_bars_have_whiskers_and_go_left_of_zero_when_they_are_below_it() -> None:
    figure = bars(SHARES, LOOK)
    go.Figure(figure["data"], figure["layout"])
    drawn, said = figure["data"]
    assert (drawn["x"], drawn["error_x"]["array"], drawn["error_x"]["visible"]) == ([40.0, -10.0], [2.0, 1.0], True)
    assert [text.strip() for text in said["text"]] == ["40.0 ± 2.0", "-10.0 ± 1.0"]
    assert said["x"] == [42.0, 1.0], "values stand beyond the whiskers"
    assert figure["layout"]["xaxis"]["range"] == [-11.0, 42.0]


def test_bound_is_a_line_within_the_axis_when_no_bar_reaches_it() -> None:
    chart = BarChart("kWh", (Bar("a", 0.05), Bar("b", 1200.0)), bound=(1500.0, "bound"))
    figure = bars(chart, LOOK)
    go.Figure(figure["data"], figure["layout"])
    (line,) = figure["layout"]["shapes"]
    assert (line["x0"], line["x1"], figure["layout"]["xaxis"]["range"]) == (1500.0, 1500.0, [0.0, 1500.0])
    assert [text.strip() for text in figure["data"][1]["text"]] == ["0.05", "1,200.00"]
    assert figure["layout"]["annotations"][0]["text"].split() == ["bound", "1,500.00"]


def test_panels_share_an_axis_and_a_name_is_in_the_legend_once() -> None:
    figure = panels(PANELS, LOOK)
    go.Figure(figure["data"], figure["layout"])
    first, longer, power = figure["data"]
    assert [trace["yaxis"] for trace in figure["data"]] == ["y", "y", "y2"]
    assert [trace["showlegend"] for trace in figure["data"]] == [True, True, False]
    assert (first["y"], longer["line"]["dash"], longer["line"]["color"]) == ([2.0, None], FORECAST_DASH, COLOURS[1])
    assert power["mode"] == "lines+markers"
    above, below = (figure["layout"][name]["domain"] for name in ("yaxis", "yaxis2"))
    assert above[0] > below[1]
    assert (figure["layout"]["xaxis"]["type"], figure["layout"]["xaxis"]["tickvals"]) == ("log", [1.0, 2.0, 4.0, 8.0])


def test_stacks_have_a_lighter_part_and_a_mark_where_a_part_is_not_known() -> None:
    east = Stack("East", 0, [10.0, None, 4.0], [2.5, 0.0, 4.0])
    west = Stack("West", 1, [1.0, 2.0, 3.0])
    chart = StackedBars("Energy", "gCO2e", ["2026-10-01", "2026-10-02", "2026-10-03"], (east, west), "idle")
    figure = stacked(chart, LOOK, "the ledger")
    go.Figure(figure["data"], figure["layout"])
    traces = {trace["name"]: trace for trace in figure["data"]}
    assert [traces[name]["y"] for name in ("East", "East idle", "West")] == [
        [7.5, None, 0.0],
        [2.5, None, 4.0],
        [1.0, 2.0, 3.0],
    ]
    assert traces["East idle"]["marker"]["pattern"]["shape"] == "/"
    assert traces["West"]["marker"]["color"] == COLOURS[1]
    assert (traces["not known in full"]["x"], figure["layout"]["yaxis"]["title"]["text"]) == (["2026-10-02"], "gCO₂e")
    assert (traces["not known in full"]["y"], figure["layout"]["xaxis"]["ticktext"][0]) == ([2.0], "10-01")
    assert stacked_table(chart).splitlines() == [
        "day,East [gCO2e],of it idle [gCO2e],West [gCO2e]",
        "2026-10-01,10.0,2.5,1.0",
        "2026-10-02,,0.0,2.0",
        "2026-10-03,4.0,4.0,3.0",
    ]


def test_spark_has_gaps_and_now_between_what_was_and_what_is_expected() -> None:
    window = TimeRange(0.0, 40.0, 10.0)
    figure = spark((5.0, None, 7.0, None), (None, None, 7.0, 9.0), window, 25.0, 1)
    go.Figure(figure["data"], figure["layout"])
    was, expected = figure["data"]
    assert (was["y"], was["connectgaps"], was["line"]["color"]) == ([5.0, None, 7.0, None], False, COLOURS[1])
    assert expected["line"]["dash"] == FORECAST_DASH
    assert (figure["layout"]["shapes"][0]["x0"], figure["layout"]["xaxis"]["range"]) == (2.5, [0, 4])
    assert figure["layout"]["yaxis"]["range"][0] == 0


def test_page_has_both_themes_and_its_script_beside_it(tmp_path: Path) -> None:
    page = tmp_path / "shares.html"
    write_page(page, partial(bars, SHARES))
    text = page.read_text()
    assert text.count("</script>") == 2, "no text ends a script"
    (script,) = re.findall(r'<script src="([^"]+)">', text)
    assert (tmp_path / script).read_bytes()[:200].count(b"plotly.js") == 1
    found = json.loads(re.findall(r"const figures = (.*);", text)[0])
    inks = [found[name]["layout"]["template"]["layout"]["font"]["color"] for name in ("light", "dark")]
    assert inks == [THEMES["light"].ink, THEMES["dark"].ink]
    with pytest.raises(OSError, match="gone"):
        write_page(tmp_path / "gone" / "shares.html", partial(bars, SHARES))


def test_figures_of_values_need_no_django() -> None:
    program = "import frontend.charts.figure_page, frontend.charts.value_figures, sys; print('django' in sys.modules)"
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert asked.stdout == "False\n"
