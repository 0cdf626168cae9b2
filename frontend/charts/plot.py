"""A figure of a page: traces and layout that Plotly has checked, its theme's template, and what stands around it.

Plotly checks each kind of figure once a process, since that takes as long as all else of a page: 0.8 ms a trace. Kinds
differ in the names and types of their properties. The tests check the values of every figure too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs_version

from .plot_style import FONT, Figure, Look, Theme

SCRIPT = f"plotly/plotly-cartesian-{get_plotlyjs_version()}.min.js"  # draws figures: a static file
MOST_KINDS = 4_096
Kind = tuple[Any, ...] | str
_checked: set[Kind] = set()


def plot(
    look: Look,
    traces: list[Figure],
    layout: Figure,
    *,
    question: str,
    source: str,
    empty: bool,
    until_s: float | None = None,
    stale: bool = False,
    lacking: str = "",
    rest: tuple[str, str] | None = None,
) -> Figure:
    """Puts a figure together. Raises ValueError, with the property's name, for what Plotly cannot draw.

    `until_s`: until when it has values, None: times mean nothing to it. `stale`: all of it is too old. `lacking`: what
    is not in it, and why. `rest`: link to what it leaves out or adds up, and what that is.
    """
    check(traces, layout)
    meta = {
        "question": question,
        "source": source,
        "until": None if until_s is None else look.time(until_s),
        "until_said": None if until_s is None else look.said(until_s),
        "empty": empty,
        "stale": stale,
        "lacking": lacking,
        "rest": rest,
    }
    return {"data": traces, "layout": layout | {"template": template(look.theme)}, "meta": meta}


def check(traces: list[Figure], layout: Figure) -> None:
    """Has Plotly check what it will draw. Raises ValueError, with the property's name."""
    kind = (_kind(traces), _kind(layout))
    if kind in _checked:
        return
    go.Figure(data=traces, layout=layout)
    if len(_checked) >= MOST_KINDS:
        _checked.clear()
    _checked.add(kind)


@lru_cache
def template(theme: Theme) -> Figure:
    """Returns what all figures of a theme have in common: inks, thin rules, the legend, and no zoom but in time."""
    axis = {
        "gridcolor": theme.rule,
        "zerolinecolor": theme.muted,
        "zerolinewidth": 1,
        "automargin": True,
        "tickfont": {"color": theme.muted, "size": 12},
        "title": {"standoff": 8, "font": {"size": 12, "color": theme.muted}},
    }
    made: Figure = go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 12, "color": theme.ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "hoverlabel": {"bgcolor": theme.paper, "bordercolor": theme.rule, "font": {"color": theme.ink, "size": 12}},
            "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "font": {"size": 12}},
            "xaxis": axis,
            "yaxis": axis | {"fixedrange": True, "nticks": 5},
        }
    ).to_plotly_json()
    return made


def _kind(part: Any) -> Kind:
    """Returns the shape of a part of a figure: names, and types of what is named; values of `type` alone."""
    if isinstance(part, dict):
        return tuple((name, value if name == "type" else _kind(value)) for name, value in part.items())
    if isinstance(part, list) and part and isinstance(part[0], dict):
        return tuple(dict.fromkeys(_kind(each) for each in part))
    return type(part).__name__
