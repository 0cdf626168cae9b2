"""The intensity of a site's electricity over a stretch, as the product's curves have it."""

from __future__ import annotations

from datetime import datetime, timedelta

from pools.models import Site
from telemetry.carbon.site_signals import DecisionCurves, IntensityCurve
from telemetry.models import CarbonFeed


def intensity_steps(site: Site, start: datetime, step_s: float, n: int) -> tuple[float | None, ...]:
    """Mean average intensity of each of `n` steps of one site in g/kWh, forecasts of our own included."""
    curve = IntensityCurve(site, start, start + timedelta(seconds=step_s * n), modelled=True)
    return DecisionCurves(CarbonFeed.Signal.AVERAGE.value, {site.pk: curve}).steps(site, start, step_s, n)
