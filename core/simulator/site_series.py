"""Sites: what a kWh means where and when. Series of carbon intensity and price, read from a scenario."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from core.simulator.fields import ScenarioError, Section

Floats = NDArray[np.float64]

HOUR_S = 3600
DEFAULT_START = datetime(2026, 1, 1, tzinfo=UTC)
LEAST_STEP_S, MOST_STEP_S = 1, 3600  # of a CSV
COLUMNS = ("start", "value")


@dataclass(frozen=True, slots=True)
class Series:
    """A value that is constant over steps of `step_s`; NaN: unknown.

    The first step begins at `first_s` (seconds of the run). If it repeats, the last step is followed by the first one
    again, and so on for ever, both ways; else there is no value outside. With a `zone`, steps are of its wall clock:
    they shift when that is put forward or back.
    """

    values: tuple[float, ...]
    step_s: int = HOUR_S
    first_s: int = 0
    repeats: bool = True
    zone: ZoneInfo | None = None
    start: datetime = DEFAULT_START

    @property
    def constant(self) -> bool:
        return self.repeats and len(self.values) == 1

    @property
    def grid_s(self) -> int:
        """All steps begin at multiples of this, in seconds of the run."""
        if self.constant:
            return HOUR_S
        shifts = [] if self.zone is None else [self._shift_s(day * 86_400.0) for day in range(0, 366, 7)]
        return math.gcd(self.step_s, self.first_s, *(round(shift) for shift in shifts))

    def at(self, t_s: float) -> float:
        """Returns the value at a second of the run; NaN: unknown."""
        if self.constant:
            return self.values[0]
        wall_s = t_s if self.zone is None else t_s + self._shift_s(t_s)
        place = math.floor((wall_s - self.first_s) / self.step_s)
        if self.repeats:
            return self.values[place % len(self.values)]
        return self.values[place] if 0 <= place < len(self.values) else math.nan

    def each(self, t_s: Floats) -> Floats:
        """Returns the values at these seconds of the run; NaN: unknown."""
        return np.array([self.at(t) for t in t_s.tolist()])

    def means(self, from_s: float, to_s: float, step_s: float) -> Floats:
        """Returns means over time in each step from `from_s` on, the last one up to `to_s`; NaN where any part is
        unknown."""
        steps = np.minimum(from_s + step_s * np.arange(math.ceil((to_s - from_s) / step_s - 1e-9)), to_s)
        if self.constant or not steps.size:
            return np.full(steps.size, self.values[0])
        grid = self.grid_s
        borders = grid * np.arange(math.floor(from_s / grid) + 1, math.ceil(to_s / grid))
        edges = np.append(np.union1d(steps, borders), to_s)
        width_s = np.diff(edges)
        weighted = self.each(edges[:-1] + width_s / 2.0) * width_s
        first = np.searchsorted(edges, steps)
        return np.asarray(np.add.reduceat(weighted, first) / np.diff(np.append(steps, to_s)))

    def _shift_s(self, t_s: float) -> float:
        """How far the wall clock has been put forward since the run began."""
        assert self.zone is not None
        then = (self.start + timedelta(seconds=t_s)).astimezone(self.zone).utcoffset()
        first = self.start.astimezone(self.zone).utcoffset()
        assert then is not None
        assert first is not None
        return (then - first).total_seconds()


@dataclass(frozen=True, slots=True)
class Site:
    """A data centre in which instances stand. Energy is metered at the GPUs; what it costs and emits is that times PUE.

    `power_cap_w`: most that policies with sites may have it draw, PUE included; None: there is no cap.
    `powered_gpus`: its GPUs by type, where those without an engine stay powered; else they draw nothing.
    """

    name: str
    pue: float = 1.0
    time_zone: str | None = None
    carbon_g_per_kwh: Series | None = None
    usd_per_kwh: Series | None = None
    usd_per_gpu_hour: float | None = None
    power_cap_w: float | None = None
    powered_gpus: Mapping[str, int] = field(default_factory=dict)

    @property
    def grid_s(self) -> int:
        """All steps of its series begin at multiples of this, in seconds of the run."""
        return math.gcd(HOUR_S, *(s.grid_s for s in (self.carbon_g_per_kwh, self.usd_per_kwh) if s is not None))

    def intensity_g_per_kwh(self, t_s: float) -> float | None:
        """Returns the grams of CO2e per kWh at a second of the run, without PUE; None: unknown."""
        return _one(self.carbon_g_per_kwh, t_s)

    def intensities(self, from_s: float, to_s: float, step_s: float) -> tuple[float | None, ...]:
        """Returns what a kWh drawn evenly over each step emits (g); the last step ends at `to_s`.

        None: not known throughout.

        Raises:
            ValueError: The step is not above 0.
        """
        return _means(self.carbon_g_per_kwh, from_s, to_s, step_s)

    def prices(self, from_s: float, to_s: float, step_s: float) -> tuple[float | None, ...]:
        """Returns what a kWh drawn evenly over each step costs, like `intensities`."""
        return _means(self.usd_per_kwh, from_s, to_s, step_s)


def bin_s(sites: Iterable[Site], most_s: float = math.inf) -> float:
    """Returns the width of an energy series' bins for these sites: the widest, at most `most_s`, that divide every step
    of theirs."""
    grid = math.gcd(HOUR_S, *(site.grid_s for site in sites))
    return float(next((grid // parts for parts in range(1, grid) if grid % parts == 0 and grid // parts <= most_s), 1))


def _means(series: Series | None, from_s: float, to_s: float, step_s: float) -> tuple[float | None, ...]:
    if step_s <= 0.0:
        raise ValueError(f"step_s must be above 0, not {step_s}")
    if series is None:
        return (None,) * max(0, math.ceil((to_s - from_s) / step_s - 1e-9))
    return tuple(_known(value) for value in series.means(from_s, to_s, step_s).tolist())


def _one(series: Series | None, t_s: float) -> float | None:
    return None if series is None else _known(series.at(t_s))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


# -- scenario files --------------------------------------------------------------------------------


def read_start(section: Section) -> datetime:
    """Reads the scenario's `start`: when t = 0 is, on a whole second and with an offset.

    Raises:
        ScenarioError: It is no time with an offset, or not on a whole second.
    """
    text = section.text("start", DEFAULT_START.isoformat())
    start = _moment(text)
    if start is None:
        raise section.error("start", f"'{text}' is not a time with an offset; write it like 2026-01-01T00:00:00+00:00")
    if start.microsecond:
        raise section.error("start", f"'{text}' must be on a whole second, so that it goes with the sites' series")
    return start


def read_site(section: Section, folder: Path, start: datetime = DEFAULT_START, name: str | None = None) -> Site:
    """Reads a site of the scenario.

    Args:
        folder: Where relative CSV files are looked for.
        start: When t = 0 is.
        name: In place of the section's own key.

    Raises:
        ScenarioError: A field or a CSV is wrong.
    """
    zone_name = section.text("time_zone", "")
    zone = _zone(section, zone_name) if zone_name else None
    found = Site(
        name=name or section.key,
        pue=section.number("pue", 1.0, least=1.0) or 1.0,
        time_zone=zone_name or None,
        carbon_g_per_kwh=_series(section, "carbon_g_per_kwh", folder, start, zone),
        usd_per_kwh=_series(section, "usd_per_kwh", folder, start, zone),
        usd_per_gpu_hour=section.number("usd_per_gpu_hour", None, least=0.0),
        power_cap_w=section.number("power_cap_w", None, least=0.0),
    )
    section.finish()
    return found


def _zone(section: Section, name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # KeyError: ZoneInfoNotFoundError
        raise section.error("time_zone", f"unknown '{name}'; write it like Europe/Berlin or UTC") from None


def _series(section: Section, key: str, folder: Path, start: datetime, zone: ZoneInfo | None) -> Series | None:
    """Reads a number, a list with one for each hour, or {csv: FILE}, which with `repeats: true` begins anew at its end.

    An hour of null is missing. A list begins with the run; in a site with a time zone with the midnight before, by its
    wall clock.
    """
    if section.is_mapping(key):
        source = section.section(key)
        path = folder / source.text("csv")
        repeats = source.flag("repeats", False)
        source.finish()
        try:
            return _read_csv(path, start, repeats)
        except ScenarioError as error:
            raise section.error(key, str(error)) from None
    values = section.series(key)
    if not values:
        return None
    if zone is None or len(values) == 1:
        return Series(values)
    local = start.astimezone(zone)
    return Series(values, first_s=-(local.hour * HOUR_S + local.minute * 60), zone=zone, start=start)


def _read_csv(path: Path, start: datetime, repeats: bool) -> Series:
    """Rows of (start, value) on a grid of a second to an hour; grid points without a row or a value are missing."""
    rows = _rows(path)
    if len(rows) < 2:
        raise ScenarioError(f"{path.name}: needs at least two rows, which say how long a step is")
    gaps_s = [after - before for (before, _), (after, _) in pairwise(rows)]
    step_s = min(gaps_s)
    if not LEAST_STEP_S <= step_s <= MOST_STEP_S:
        raise ScenarioError(f"{path.name}: steps must be of a second to an hour, not {step_s:g} s")
    for (at_s, _), gap_s in zip(rows, gaps_s, strict=False):
        if gap_s % step_s:
            moment = datetime.fromtimestamp(at_s + gap_s, UTC).isoformat()
            raise ScenarioError(f"{path.name}: {moment} is off the grid of {step_s:g} s that the rows begin")
    first_s = rows[0][0]
    values = np.full((rows[-1][0] - first_s) // step_s + 1, np.nan)
    for at_s, value in rows:
        values[(at_s - first_s) // step_s] = value
    return Series(tuple(values.tolist()), step_s, first_s - round(start.timestamp()), repeats=repeats)


def _rows(path: Path) -> list[tuple[int, float]]:
    rows: list[tuple[int, float]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if missing := [column for column in COLUMNS if column not in (reader.fieldnames or ())]:
                raise ScenarioError(f"{path.name}: column '{missing[0]}' is missing; begin with: start,value")
            for fields in reader:
                row = _row(f"{path.name} line {reader.line_num}", fields)
                if rows and row[0] <= rows[-1][0]:
                    raise ScenarioError(f"{path.name} line {reader.line_num}: start must come after the row before")
                rows.append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    return rows


def _row(where: str, fields: dict[str, str | None]) -> tuple[int, float]:
    at = _moment(fields["start"] or "")
    if at is None:
        raise ScenarioError(f"{where}, start: '{fields['start']}' is not a time with an offset, like 2026-01-01T00:00Z")
    if at.microsecond:
        raise ScenarioError(f"{where}, start: '{fields['start']}' is not on a whole second")
    text = (fields["value"] or "").strip()
    try:
        value = float(text) if text else math.nan
    except ValueError:
        raise ScenarioError(f"{where}, value: '{text}' is not a number; leave it empty where there is none") from None
    if text and not math.isfinite(value):
        raise ScenarioError(f"{where}, value: '{text}' is not a number; leave it empty where there is none")
    return round(at.timestamp()), value


def _moment(text: str) -> datetime | None:
    """Reads an ISO time with an offset; None: it is not one."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
