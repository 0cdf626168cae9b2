"""The demo's synthetic grid day: a formula, not a measurement. `python pools/demo/carbon_curve.py` writes its CSV.

Three shapes of real grids, so that the cleanest site changes over the day:
- solar: gas-fired nights, a midday trough (the "duck curve"), a steep evening ramp;
- wind: clean at night, dirtier when demand peaks in the afternoon;
- coal: high all day with a morning and an evening shoulder.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

FILE = Path(__file__).with_name("carbon_day.csv")
STEP_S = 300
STEPS = 86_400 // STEP_S
DAY = datetime(2026, 1, 1, tzinfo=UTC)
SOURCE = "synthetic demo day, formula in pools/demo/carbon_curve.py"


def _bump(hour: float, centre: float, width: float) -> float:
    """Returns a Gaussian bump on the circle of 24 hours."""
    distance = (hour - centre + 12.0) % 24.0 - 12.0
    return math.exp(-0.5 * (distance / width) ** 2)


def _ripple(hour: float, seed: int) -> float:
    """Returns weather within -1..1, in whole harmonics of the day, so that midnight joins up."""
    angle = 2.0 * math.pi * hour / 24.0
    return 0.6 * math.sin(5.0 * angle + seed) + 0.4 * math.sin(11.0 * angle + 2.0 * seed)


def solar_g_per_kwh(hour: float) -> float:
    sun = max(0.0, math.sin(math.pi * (hour - 6.0) / 12.0))
    return 510.0 - 320.0 * math.pow(sun, 1.5) + 150.0 * _bump(hour, 19.5, 1.6) + 12.0 * _ripple(hour, 1)


def wind_g_per_kwh(hour: float) -> float:
    return 350.0 - 150.0 * math.cos(2.0 * math.pi * (hour - 3.0) / 24.0) + 35.0 * _ripple(hour, 2)


def coal_g_per_kwh(hour: float) -> float:
    return 640.0 + 90.0 * _bump(hour, 8.0, 2.0) + 170.0 * _bump(hour, 18.5, 2.5) + 15.0 * _ripple(hour, 3)


ZONES: dict[str, Callable[[float], float]] = {
    "US-PJM-DOM": solar_g_per_kwh,
    "US-PJM-COMED": wind_g_per_kwh,
    "US-PJM-AEP": coal_g_per_kwh,
}


def rows() -> Iterator[tuple[str, str, str, str, str, str, str, str]]:
    """Yields the file's rows, header first; values are g/kWh at the middle of each step, rounded to 0.1."""
    yield ("zone", "start_utc", "end_utc", "signal", "value", "unit", "factor", "source")
    for zone, curve in ZONES.items():
        for step in range(STEPS):
            start = DAY + timedelta(seconds=step * STEP_S)
            end = start + timedelta(seconds=STEP_S)
            value = f"{curve((step + 0.5) * STEP_S / 3600.0):.1f}"
            since, until = (f"{moment:%Y-%m-%dT%H:%M}Z" for moment in (start, end))
            yield (zone, since, until, "average", value, "gCO2e/kWh", "lifecycle", SOURCE)


def write(path: Path = FILE) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows())


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
