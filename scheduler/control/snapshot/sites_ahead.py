"""Reads what energy emits and costs at sites over the coming steps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from core.observations.demand.carbon_ahead import SiteAhead
from pools.models import Site
from telemetry.carbon.site_signals import for_decisions, price_steps


def sites_ahead(
    sites: Sequence[Site], now: datetime, step_s: float, steps: int, *, prices: bool = True
) -> tuple[tuple[SiteAhead, ...], str]:
    """Returns the sites, in this order, and which signal their intensities are. `prices`: read those too."""
    curves = for_decisions(sites, now, now + timedelta(seconds=step_s * steps))
    found = tuple(
        SiteAhead(
            name=site.name,
            pue=site.pue,
            g_per_kwh=curves.steps(site, now, step_s, steps),
            usd_per_kwh=price_steps(site, now, step_s, steps, "USD") if prices else (),
        )
        for site in sites
    )
    return found, curves.signal
