"""Line charts on the shared time axis, from values: the figure to draw, and the same figures as CSV. Pure.

The Overview's four charts have shapes of their own (`figures`); those of the fleet's pages are all of this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from core.cells import csv_text
from frontend import formats
from telemetry.selectors.frames import TimeRange, Values

from .figure_parts import FULL, STALE_S
from .plot import plot
from .plot_style import FORECAST_DASH, Figure, Look, axis, layout, level, series_style, short, silences, site_line


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One value or None a bucket. `forecast` is dashed; `faint` is a modelled or extreme one, drawn lighter.

    `colour` is a site's own, the same everywhere; None: colours by turn.
    """

    name: str
    values: Values
    forecast: bool = False
    faint: bool = False
    colour: int | None = None


@dataclass(frozen=True, slots=True)
class LineChart:
    """`unit` in SI without prefix where `prefixed`; `zero`: the axis starts at 0, as for energy, carbon and cost.

    `silent` marks buckets in which a meter was silent; `level` is an objective or a cap, with its name.
    """

    question: str
    unit: str
    source: str
    window: TimeRange
    lines: tuple[PlotLine, ...]
    prefixed: bool = False
    zero: bool = True
    steps: bool = False
    silent: Sequence[bool] = ()
    level: tuple[float, str] | None = None
    until_s: float | None = None
    now_s: float | None = None  # where the window ends later than now

    @property
    def empty(self) -> bool:
        return not any(value is not None for line in self.lines for value in line.values)

    @property
    def known_until_s(self) -> float | None:
        """The end of the last bucket with a value that is no forecast, if nobody said otherwise."""
        if self.until_s is not None:
            return self.until_s
        ends_s = self.window.ends_s
        seen = [
            ends_s[i]
            for line in self.lines
            if not line.forecast
            for i, value in enumerate(line.values)
            if value is not None
        ]
        return min(max(seen), self.now_s or self.window.end_s) if seen else None


def figure(chart: LineChart, look: Look) -> Figure:
    """Draws lines with gaps where nothing was known, and grey bands where a meter was silent."""
    window = chart.window
    largest = max((abs(v) for line in chart.lines for v in line.values if v is not None), default=None)
    divisor, prefix = formats.prefix(largest, floor=1e-3) if chart.prefixed else (1.0, "")
    unit = f"{prefix}{chart.unit}"
    x = look.grid(window.starts_s if chart.steps else window.middles_s)
    traces = [_trace(line, n, x, divisor, unit, chart.steps) for n, line in enumerate(chart.lines)]
    value_axis = axis(unit, FULL, **({"rangemode": "tozero"} if chart.zero else {}))
    now_s = chart.now_s or window.end_s
    drawn_until_s = window.end_s if window.end_s > now_s else None
    arrangement = layout(look, replace(window, end_s=now_s), {"yaxis": value_axis}, drawn_until_s)
    silences(arrangement, look, window, chart.silent)
    if chart.level is not None:
        level(traces, arrangement, look, chart.level[0] / divisor, chart.level[1])
    until_s = chart.known_until_s
    return plot(
        look,
        traces,
        arrangement,
        question=chart.question,
        source=chart.source + ("; grey: a meter was silent" if any(chart.silent) else ""),
        until_s=until_s,
        empty=chart.empty,
        stale=until_s is not None and until_s < now_s - max(STALE_S, 2 * window.bucket_s),
    )


def table(chart: LineChart) -> str:
    """Writes the chart's figures as CSV: UTC times, the unit in each heading, an empty cell for unknown."""
    unit = chart.unit or "value"
    rows = (
        [
            f"{datetime.fromtimestamp(start_s, UTC):%Y-%m-%dT%H:%M:%SZ}",
            *(None if (value := line.values[i]) is None else float(f"{value:.9g}") for line in chart.lines),
        ]
        for i, start_s in enumerate(chart.window.starts_s)
    )
    return csv_text(["start_utc", *(f"{line.name} [{unit}]" for line in chart.lines)], rows)


def _trace(line: PlotLine, n: int, x: Figure, divisor: float, unit: str, steps: bool) -> Figure:
    colour, dash = series_style(n) if line.colour is None else site_line(line.colour)
    if line.forecast:
        dash = FORECAST_DASH
    return {
        "type": "scatter",
        "mode": "lines",
        "name": line.name,
        **x,
        "y": [None if v is None else short(v / divisor) for v in line.values],
        "connectgaps": False,
        "opacity": 0.55 if line.faint else 1.0,
        "line": {"color": colour, "dash": dash, "width": 1.5 if line.forecast or line.faint else 2.0}
        | ({"shape": "hv"} if steps else {}),
        "hovertemplate": f"{line.name}: %{{y:.4~g}} {unit}<extra></extra>",
    }
