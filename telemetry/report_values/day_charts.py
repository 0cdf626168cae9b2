"""The charts of a report: energy and carbon by day and site. Its document and its page draw the same values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from core.chart_values import Stack, StackedBars

from .basis import SiteBasis
from .totals import Day
from .unit_scale import CARBON, ENERGY, Scale, scale_for


def day_charts(days: Sequence[Day], sites: Sequence[tuple[str, SiteBasis]]) -> dict[str, StackedBars]:
    """Returns the charts by name; none where there is no day. A site has a gap on days of which there is nothing."""
    dates = sorted({day.date for day in days})
    if not dates:
        return {}
    found = {(day.site, day.date): day for day in days}

    def stacks(value: Callable[[Day], float | None], light: Callable[[Day], float] | None = None) -> tuple[Stack, ...]:
        return tuple(_stack(name, site, dates, found, value, light) for name, site in sites)

    energy = scale_for(ENERGY, [day.totals.energy_uj / 3.6e12 for day in days])
    carbon = scale_for(CARBON, [_location_kg(day) for day in days])
    return {
        "energy": StackedBars(
            "Energy at the GPUs by day",
            energy.unit,
            dates,
            stacks(
                lambda day: day.totals.energy_uj / 3.6e12 / energy.size,
                lambda day: day.totals.idle_uj / 3.6e12 / energy.size,
            ),
            "idle",
        ),
        "carbon": StackedBars(
            "Scope 2, location-based, by day", carbon.unit, dates, stacks(lambda day: _scaled_location(day, carbon))
        ),
    }


def _stack(
    name: str,
    site: SiteBasis,
    dates: Sequence[str],
    found: Mapping[tuple[str, str], Day],
    value: Callable[[Day], float | None],
    light: Callable[[Day], float] | None,
) -> Stack:
    own = [found.get((name, date)) for date in dates]
    lights = None if light is None else [light(day) if day else 0.0 for day in own]
    colour = site.rank if site.colour is None else site.colour
    return Stack(site.label, colour, [value(day) if day else None for day in own], lights)


def _location_kg(day: Day) -> float | None:
    return None if day.totals.location is None else day.totals.location / 1e9


def _scaled_location(day: Day, scale: Scale) -> float | None:
    kg = _location_kg(day)
    return None if kg is None else kg / scale.size
