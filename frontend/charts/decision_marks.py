"""The decisions' marks: one trace that a page's charts on the time axis share, so that it is sent once."""

from __future__ import annotations

from collections.abc import Sequence

from telemetry.selectors.frames import DecisionTick

from .plot import check
from .plot_style import Figure, Look, wrapped


def decision_marks(look: Look, ticks: Sequence[DecisionTick]) -> Figure:
    """Draws marks at the foot of charts: hover says what and why, a click follows `customdata`, the decision's page."""
    marks = {
        "type": "scatter",
        "mode": "markers",
        "name": "decisions",
        "x": look.times([tick.at_s for tick in ticks]),
        "y": [0.5] * len(ticks),
        "yaxis": "y9",
        "showlegend": False,
        "marker": {
            "symbol": "line-ns-open",
            "size": 10,
            "line": {"width": 2},
            "color": look.theme.muted,
        },
        "customdata": [tick.url for tick in ticks],
        "text": [f"{tick.kind}, {tick.reason.replace('_', ' ')}: {wrapped(tick.summary)}" for tick in ticks],
        "hovertemplate": "%{text}<extra></extra>",
    }
    check([marks], {})
    return marks
