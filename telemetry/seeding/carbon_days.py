"""The carbon intensity of the demo's past: the feeds' file played once a day, so that it meets what they play live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import numpy as np

from telemetry.carbon import feeds
from telemetry.ledger.window_sources import WINDOW_S
from telemetry.models import CarbonFeed
from telemetry.seeding.modelled_day import DAY_S, WINDOWS
from telemetry.seeding.modelled_engine import Floats


def seed(start: datetime, end: datetime) -> Mapping[int, Floats]:
    """Stores points of [start, end) for each feed. Returns by site the intensity in each window of a day, in g/kWh,
    NaN where the file has none."""
    curves = {}
    for feed in CarbonFeed.objects.select_related("site"):
        once = CarbonFeed(site=feed.site, provider=feed.provider, signal=feed.signal, factor=feed.factor)
        once.config = {**feed.config, "speedup": 1.0}
        live_s = end.timestamp() * float(feed.config["speedup"]) % DAY_S  # where the live feed is in the file
        ahead_s = (live_s - end.timestamp()) % DAY_S // WINDOW_S * WINDOW_S
        since_s, until_s = start.timestamp() + ahead_s, end.timestamp() + ahead_s
        day = feeds.provider(once).actuals(feeds.zone(feed), since_s, max(until_s, since_s + DAY_S) - 1.0)
        points = [
            replace(
                point,
                start_s=point.start_s - ahead_s,
                end_s=min(point.end_s, until_s) - ahead_s,
                issued_at_s=point.start_s - ahead_s,
            )
            for point in day
        ]
        feeds.append(feed, [point for point in points if point.start_s < end.timestamp()], end)
        values = [point.value_g_per_kwh for point in points[:WINDOWS]]
        curves[feed.site_id] = np.array([np.nan if value is None else value for value in values])
    return curves
