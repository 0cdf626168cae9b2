from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs_version

from frontend.charts import plot as module
from frontend.charts.plot import SCRIPT, plot, template
from frontend.charts.plot_style import THEMES, Figure, Look

LOOK = Look(THEMES["light"], UTC, "UTC")
PAGES = Path(module.__file__).parents[1]


def drawn(trace: Figure, layout: Figure | None = None, look: Look = LOOK) -> Figure:
    return plot(look, [trace], layout or {}, question="What?", source="a test", empty=False)


def test_figure_is_refused_when_plotly_does_not_know_a_property() -> None:
    with pytest.raises(ValueError, match="colour"):
        drawn({"type": "bar", "marker": {"colour": "red"}})
    with pytest.raises(ValueError, match="hovermod"):
        drawn({"type": "bar"}, {"hovermod": "x"})


def test_each_kind_of_figure_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Figure] = []
    monkeypatch.setattr(module, "_checked", set())
    monkeypatch.setattr(module.go, "Figure", lambda **parts: checked.append(parts))
    for trace in ({"type": "bar", "y": [1.0]}, {"type": "bar", "y": [2.0, 3.0]}, {"type": "scatter", "y": [1.0]}):
        drawn(trace)
    assert len(checked) == 2


def test_figures_of_a_theme_have_one_template() -> None:
    dark = Look(THEMES["dark"], UTC, "UTC")
    assert drawn({"type": "bar"})["layout"]["template"] == template(LOOK.theme)
    assert drawn({"type": "bar"}, look=dark)["layout"]["template"]["layout"]["font"]["color"] == dark.theme.ink


def test_browsers_plotly_is_the_version_that_checks_the_figures() -> None:
    files = {path.name for path in (PAGES / "static" / "plotly").glob("*.js")}
    assert files == {f"plotly-cartesian-{get_plotlyjs_version()}.min.js"}
    assert (PAGES / "static" / SCRIPT).is_file()
    pages = {path.name: path.read_text() for path in (PAGES / "templates").rglob("*.html")}
    assert [name for name, page in pages.items() if "plotly-" in page] == [], "these name it by themselves"
    assert [name for name, page in pages.items() if "<svg" in page] == [], "these draw by hand"
