"""A figure as charts.js draws it: traces and layout in Plotly's terms, and what stands around it. Pure."""

from __future__ import annotations

from .plot_style import Figure, Look


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
    """Puts a figure together.

    `until_s`: until when it has values, None: times mean nothing to it. `stale`: all of it is too old. `lacking`: what
    is not in it, and why. `rest`: link to what it leaves out or adds up, and what that is.
    """
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
    return {"data": traces, "layout": layout, "meta": meta}
