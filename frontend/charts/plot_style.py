"""The look that all charts share: inks, colours, axes, layout. Pure dictionaries in Plotly's terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, tzinfo
from typing import TYPE_CHECKING, Any

from core.chart_values import COLOURS

if TYPE_CHECKING:  # its package reads the database, of which figures of the laboratory know nothing
    from telemetry.selectors.frames import TimeRange

Figure = dict[str, Any]

OTHERS_COLOUR = "#888E96"
SERIES_COLOURS = ("#D55E00", "#56B4E9", "#CC79A7", OTHERS_COLOUR)
DASHES = ("solid", "dot", "dashdot", "longdashdot")  # of the first series, then of those whose colours come again
TEXTURES = ("", ".", "x", "+")  # of bars, likewise; "/" says that power is idle
FORECAST_DASH = "4px,3px"  # short dashes say that something is expected, and nothing else
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Noto Sans', sans-serif"
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
AHEAD_SHARE = 1 / 12  # of the range, kept free to the right of now for forecasts


@dataclass(frozen=True, slots=True)
class Theme:
    ink: str
    muted: str
    rule: str
    paper: str
    silent: str


THEMES = {
    "light": Theme("#1a1d21", "#5b626b", "#e3e6ea", "#ffffff", "rgba(91,98,107,0.16)"),
    "dark": Theme("#e8eaed", "#a2aab4", "#2c3138", "#14171a", "rgba(162,170,180,0.20)"),
}


@dataclass(frozen=True, slots=True)
class Look:
    """The reader's choices for a chart: theme, and the time zone with the name shown beside times.

    `fixed`: the range does not end now, so that no room is kept for what is to come. `today`: the only day whose
    times stand without their date; None: there is none.
    """

    theme: Theme
    zone: tzinfo
    zone_name: str
    fixed: bool = False
    today: date | None = None

    def time(self, at_s: float) -> str:
        """Plotly knows no zones: times are written as the clock on the wall of the chosen one."""
        return datetime.fromtimestamp(at_s, self.zone).strftime(TIME_FORMAT)

    def said(self, at_s: float) -> str:
        """Writes a moment for people: with its date, unless it is of today."""
        at = datetime.fromtimestamp(at_s, self.zone)
        return f"{at:%H:%M:%S}" if at.date() == self.today else f"{at.day} {at:%b %H:%M:%S}"

    def dated(self, start_s: float, end_s: float) -> bool:
        """Tells whether times of this span need their dates: it is longer than a day, or not all of it is today."""
        return {datetime.fromtimestamp(at_s, self.zone).date() for at_s in (start_s, end_s)} != {self.today}

    def times(self, at_s: Sequence[float]) -> list[str]:
        return [self.time(moment) for moment in at_s]

    def grid(self, at_s: Sequence[float]) -> Figure:
        """Returns evenly spaced times as a trace has them: the first and their distance (ms), far shorter than a list.

        It is a list nevertheless where clocks change in between, since local times are not evenly spaced then.
        """
        if len(at_s) < 2 or self._offset_s(at_s[0]) != self._offset_s(at_s[-1]):
            return {"x": self.times(at_s)}
        return {"x0": self.time(at_s[0]), "dx": (at_s[1] - at_s[0]) * 1_000}

    def _offset_s(self, at_s: float) -> float:
        offset = datetime.fromtimestamp(at_s, self.zone).utcoffset()
        return offset.total_seconds() if offset else 0.0


def site_style(place: int | None) -> tuple[str, int]:
    """Returns the colour of a site, and how often that colour was given before; a dash or a texture tells these apart.

    None: several sites together.
    """
    if place is None:
        return OTHERS_COLOUR, 0
    return COLOURS[place % len(COLOURS)], place // len(COLOURS)


def site_line(place: int | None) -> tuple[str, str]:
    """Returns colour and dash of a site's line."""
    colour, turn = site_style(place)
    return colour, DASHES[turn % len(DASHES)]


def site_bar(look: Look, place: int | None) -> Figure:
    """Returns the marker of a site's bars."""
    colour, turn = site_style(place)
    texture = TEXTURES[turn % len(TEXTURES)]
    marker: Figure = {"color": colour, "line": {"width": 0}}
    if texture:
        marker["pattern"] = {"shape": texture, "size": 6, "solidity": 0.3, "fgcolor": look.theme.paper}
        marker["pattern"]["bgcolor"] = colour
    return marker


def site_hatched(look: Look, place: int | None) -> Figure:
    """Returns the marker of that part of a site's bars which is idle: lighter and hatched."""
    colour, _ = site_style(place)
    pattern = {"shape": "/", "size": 5, "solidity": 0.4, "fgcolor": colour, "bgcolor": look.theme.rule}
    return {"color": colour, "opacity": 0.6, "line": {"width": 0}, "pattern": pattern}


def series_style(n: int) -> tuple[str, str]:
    """Returns colour and dash of series number `n` of a chart whose series are not sites."""
    turn, place = divmod(n, len(SERIES_COLOURS))
    return SERIES_COLOURS[place], DASHES[turn % len(DASHES)]


def short(value: float | None, digits: int = 4) -> float | None:
    """Four significant figures: more cannot be seen, and a page fetches this every few seconds."""
    return None if value is None else float(f"{value:.{digits}g}")


def axis(title: str, domain: tuple[float, float], **more: Any) -> Figure:
    """Makes a value axis, its unit in the title."""
    return {"title": {"text": title}, "domain": list(domain), **more}


def layout(look: Look, window: TimeRange, axes: Figure, drawn_until_s: float | None = None) -> Figure:
    """Makes the layout of a chart on the shared time axis, with room for the decisions' ticks at its foot.

    The axis ends at `drawn_until_s`; None: a little after the window.
    """
    theme = look.theme
    ahead_s = 0.0 if look.fixed else (window.end_s - window.start_s) * AHEAD_SHARE
    end_s = window.end_s + ahead_s if drawn_until_s is None else drawn_until_s
    now = look.time(window.end_s)
    dated = look.dated(window.start_s, end_s)
    below = "\n%-d %b" if dated else ""  # on the first tick, and where the day changes
    return {
        "margin": {"l": 60, "r": 12, "t": 6, "b": 60 if dated else 46},
        "hovermode": "x unified",
        "legend": {"traceorder": "normal"},
        "dragmode": "zoom",
        "uirevision": "keep",
        "bargap": 0,
        "xaxis": {
            "type": "date",
            "range": [look.time(window.start_s), look.time(end_s)],
            "anchor": "y9",
            "showgrid": False,
            "ticks": "outside",
            "tickcolor": theme.rule,
            "nticks": 8,
            "automargin": False,
            "tickformatstops": [
                {"dtickrange": [None, 59_999], "value": f"%H:%M:%S{below}"},
                {"dtickrange": [60_000, 86_399_999], "value": f"%H:%M{below}"},
                {"dtickrange": [86_400_000, None], "value": "%-d %b"},
            ],
            "title": {"text": f"time ({look.zone_name})", "standoff": 10},
            "hoverformat": "%-d %b %H:%M:%S" if dated else "%H:%M:%S",
        },
        "yaxis9": {"domain": [0.0, 0.05], "range": [0, 1], "visible": False, "fixedrange": True},
        "shapes": [
            {"type": "line", "xref": "x", "yref": "paper", "x0": now, "x1": now, "y0": 0, "y1": 1}
            | {"line": {"color": theme.muted, "width": 0 if look.fixed else 1, "dash": "dot"}}
        ],
        "annotations": [],
        **axes,
    }


def wrapped(text: str, width: int = 60) -> str:
    """Returns up to four lines, in which nothing is taken for a tag."""
    lines, line = [], ""
    for word in text.replace("<", "\u2039").replace(">", "\u203a").split():
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "<br>".join([*lines, line][:4])


def band(look: Look, start_s: float, end_s: float) -> Figure:
    """Makes a grey band over a time in which a source was silent."""
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": look.time(start_s),
        "x1": look.time(end_s),
        "y0": 0.08,
        "y1": 1,
        "fillcolor": look.theme.silent,
        "line": {"width": 0},
        "layer": "below",
    }


def silences(arrangement: Figure, look: Look, window: TimeRange, silent: Sequence[bool]) -> None:
    """Adds a grey band for each run of buckets in which a source was silent."""
    arrangement["shapes"] += [band(look, start_s, end_s) for start_s, end_s in runs(window, silent)]


def runs(window: TimeRange, marked: Sequence[bool]) -> list[tuple[float, float]]:
    """Returns from when to when buckets were marked that follow each other."""
    starts_s, ends_s = window.starts_s, window.ends_s
    found: list[tuple[float, float]] = []
    begun: float | None = None
    for i, mark in enumerate(marked):
        if mark and begun is None:
            begun = starts_s[i]
        if begun is not None and (not mark or i == len(marked) - 1):
            found.append((begun, ends_s[i] if mark else starts_s[i]))
            begun = None
    return found


def level(traces: list[Figure], arrangement: Figure, look: Look, y: float, text: str) -> None:
    """A thin line at a target or a limit, named in the legend: a word beside it would lie on somebody's line."""
    line = {"color": look.theme.ink, "width": 1, "dash": "dash"}
    arrangement["shapes"].append(
        {"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}
    )
    traces.append(
        {"type": "scatter", "mode": "lines", "x": [None], "y": [None], "line": line}
        | {"name": text, "showlegend": True, "hoverinfo": "skip"}
    )
