"""A small figure without axes: what was, what is expected, and now. It has the same look in both themes."""

from __future__ import annotations

from telemetry.selectors.frames import TimeRange, Values

from .plot import check
from .plot_style import FORECAST_DASH, OTHERS_COLOUR, Figure, short, site_line

HEIGHT_PX = 48
ROOM = 1.04  # above the largest value


def spark(actual: Values, forecast: Values, window: TimeRange, now_s: float, colour: int | None) -> Figure:
    """Draws a value a bucket, from zero; None is a gap. `colour` is a site's own."""
    top = max((v for v in (*actual, *forecast) if v is not None), default=1.0)
    now = round((now_s - window.start_s) / window.bucket_s, 2)
    colour_of_site, dash = site_line(colour)
    line = {"color": colour_of_site, "shape": "hvh"}
    traces: list[Figure] = [
        {"type": "scatter", "mode": "lines", "x0": 0.5, "dx": 1, "y": [short(v, 3) for v in values]}
        | {"connectgaps": False, "line": line | {"dash": dashed, "width": width}}
        for values, dashed, width in ((actual, dash, 2.0), (forecast, FORECAST_DASH, 1.5))
    ]
    layout: Figure = {
        "height": HEIGHT_PX,
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "xaxis": {"visible": False, "range": [0, window.count]},
        "yaxis": {"visible": False, "range": [0, max(top, 1.0) * ROOM]},
        "shapes": [
            {"type": "line", "xref": "x", "yref": "paper", "x0": now, "x1": now, "y0": 0, "y1": 1}
            | {"line": {"color": OTHERS_COLOUR, "width": 1, "dash": "dot"}}
        ],
    }
    check(traces, layout)
    return {"data": traces, "layout": layout}
