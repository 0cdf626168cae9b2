"""Small frames for tests of figures."""

from __future__ import annotations

from telemetry.selectors.frames import (
    CarbonFrame,
    IntensityStep,
    JainFrame,
    PowerFrame,
    SiteCarbon,
    SitePower,
    SloFrame,
    SloSeries,
    TimeRange,
)
from telemetry.selectors.ledger_frames import KindSums, LedgerSums, SiteSums

WINDOW = TimeRange(1_000.0, 1_040.0, 10.0)  # four buckets


def power(**changes: object) -> PowerFrame:
    quiet = (False,) * 4
    sites = (
        SitePower("east", "East", 0, (1_000.0, 2_000.0, None, 1_000.0), (500.0,) * 4, (False, False, True, False)),
        SitePower("west", "West", 1, (3_000.0,) * 4, (0.0,) * 4, quiet),
    )
    values = {"time_range": WINDOW, "sites": sites, "metered_until_s": 1_040.0} | changes
    return PowerFrame(**values)  # type: ignore[arg-type]


def carbon() -> CarbonFrame:
    actual = (
        IntensityStep(1_000.0, 1_010.0, 400.0),
        IntensityStep(1_010.0, 1_020.0, None),
        IntensityStep(1_030.0, 1_040.0, 410.0),
    )
    forecast = (IntensityStep(1_040.0, 1_050.0, 420.0, issued_at_s=1_035.0),)
    east = SiteCarbon("east", "East", 0, (100.0, None, 200.0, 300.0), actual, forecast, "a meter", 1_040.0)
    west = SiteCarbon("west", "West", 1, (50.0,) * 4, (), (), "", None)
    return CarbonFrame(WINDOW, (east, west))


def sums() -> LedgerSums:
    quiet = (False,) * 4
    east = {
        "serving": KindSums((10_000_001, 20_000_000, None, 10_000_000), (5, None, None, 7), (0, 20_000_000, None, 0)),
        "idle": KindSums((5_000_000, 0, None, 5_000_000), (3, 0, None, 2), (0, 0, None, 0)),
    }
    west = {"serving": KindSums((30_000_000,) * 4, (9,) * 4, (0,) * 4)}
    heard = (1.0, 0.5, None, 1.0)
    return LedgerSums(
        WINDOW, (SiteSums("east", east, heard, (False, True, False, False)), SiteSums("west", west, (1.0,) * 4, quiet))
    )


def slo(attained: tuple[float | None, ...] = (1.0, 0.97, None, 0.995), target: float = 0.99) -> SloFrame:
    series = SloSeries("chat", "ttft", 2.0, target, attained, (10, 10, 0, 10), 30, 29)
    return SloFrame(WINDOW, 120.0, (series,), judged=30, met=29, last_end_s=1_035.0)


def jain() -> JainFrame:
    return JainFrame(WINDOW, 120.0, (None, 0.9, 0.95, 1.0), 0.95, {("chat", "SS"): (None, None, 0.8, 0.9)}, 1_035.0)
