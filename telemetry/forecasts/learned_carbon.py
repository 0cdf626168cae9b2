"""Models of `core.predictors.boosted_carbon` for feeds: learned once a day, kept in the database, used by back-tests.

A model is learned from all that a feed measured but the last two weeks, on which back-tests then judge it with the
others: it never saw what it is scored on. Only feeds of average intensity whose days last a day have one.

A site whose weather is known has two: one that reads the weather too, and one without it for when that is missing. The
first says nothing of an hour whose weather is unknown, and is not to be had while the hours ahead have no fresh
forecast. Back-tests give it, of the past, the weather that was in the place of what was forecast then.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

import numpy as np
from django.db.models import Q

from core.predictors.boosted_carbon import CarbonModel
from core.predictors.carbon_features import DAY, LEADS, Floats, Grid
from core.predictors.carbon_training import MOST_DAYS, TooShort, fit
from core.predictors.seasonal import History, Model
from telemetry.carbon import feeds
from telemetry.models import CarbonFeed, LearnedForecast, WeatherFeed
from telemetry.weather import weather_history
from telemetry.weather.weather_history import Sky
from telemetry.weather.weather_port import hour_of

from . import histories

log = logging.getLogger(__name__)

NAME, WITH_WEATHER = "trees", "trees with weather"
ENOUGH = 0.9  # of the hours that a model learns from must have their weather
PACKED = ("model", "with_weather")
HOUR_S = 3_600.0
HELD_BACK = timedelta(days=histories.DAYS / 2)  # where back-tests have their origins
AGAIN = timedelta(days=1)


def learn_due(now: datetime, budget_s: float) -> int:
    """Learns models for the feeds that were learned longest ago, until the time is used up; returns how many.

    One whose history no model can be made of does not stop the others.
    """
    until, count = time.monotonic() + budget_s, 0
    packed = [f"learned_forecast__{name}" for name in PACKED]
    rows = CarbonFeed.objects.select_related("site", "learned_forecast").defer(*packed)
    for feed in sorted(filter(can_have_one, rows), key=_tried_at):
        if time.monotonic() >= until or now - AGAIN < _tried_at(feed) <= now:
            break
        try:
            count += learn(feed, now)
        except Exception:
            log.exception("learning a forecast for the carbon feed of %s", feed.site)
            _note(feed, now, "learning failed; the server's log says why")
    return count


def can_have_one(feed: CarbonFeed) -> bool:
    """Says whether a model can be learned for this feed: prices and marginal rates may be negative, and have none."""
    return feed.signal == CarbonFeed.Signal.AVERAGE and histories.day_s(feed) == histories.DAY_S


def _tried_at(feed: CarbonFeed) -> datetime:
    found: LearnedForecast | None = getattr(feed, "learned_forecast", None)
    return found.tried_at if found else datetime.min.replace(tzinfo=UTC)


def learn(feed: CarbonFeed, now: datetime) -> bool:
    """Learns a feed's model and stores it. False: its past is too short, and the row says by how much."""
    history = histories.carbon(feed, now - HELD_BACK, HOUR_S, MOST_DAYS)
    begun, grid = time.monotonic(), Grid(history.first_step, history.values)
    try:
        model = fit(grid)
    except TooShort as reason:
        _note(feed, now, f"{reason}; the last {HELD_BACK.days} days are kept for back-tests")
        return False
    under_sky, note = _learned_with_weather(feed, grid, now)
    log.info("learned a forecast for the carbon feed of %s in %.0f s", feed.site, time.monotonic() - begun)
    learned = {"model": model.to_bytes(), "hours": model.hours, "with_weather": under_sky and under_sky.to_bytes()}
    LearnedForecast.objects.update_or_create(
        feed=feed, defaults={"tried_at": now, "learned_at": now, "note": note, **learned}
    )
    return True


def _learned_with_weather(feed: CarbonFeed, grid: Grid, now: datetime) -> tuple[CarbonModel | None, str]:
    """Returns the model that reads the weather too; None where too little of that is known, and the note on it."""
    if not WeatherFeed.objects.filter(site=feed.site).exists():
        return None, ""
    end = grid.first_hour + grid.carbon.size
    rows = weather_history.sky(feed.site, grid.first_hour, end, now).rows
    measured = ~np.isnan(grid.carbon)
    days, all_days = ((hours & measured).sum() / DAY for hours in (weather_history.whole(rows), measured))
    if days < ENOUGH * all_days:
        return None, f"learned without weather, which is known of {days:.0f} of {all_days:.0f} days"
    return fit(replace(grid, weather=rows)), ""


def _note(feed: CarbonFeed, now: datetime, note: str) -> None:
    LearnedForecast.objects.update_or_create(feed=feed, defaults={"tried_at": now, "note": note})


def status(feed: CarbonFeed) -> LearnedForecast | None:
    """Returns what a page says of a feed's models, without them; None: nobody tried to learn one yet.

    `reads_weather` says whether one of them does.
    """
    rows = LearnedForecast.objects.filter(feed=feed).defer(*PACKED)
    return rows.annotate(reads_weather=Q(with_weather__isnull=False)).first()


def models(feed: CarbonFeed, now: datetime) -> Mapping[str, Model]:
    """Returns the feed's models by name, as far as they were learned, can be read, and know the weather they need."""
    row = LearnedForecast.objects.filter(feed=feed, model__isnull=False).first()
    if row is None or not can_have_one(feed):
        return {}
    found: dict[str, Model] = {}
    try:
        if row.model is not None:
            found[NAME] = by_hours(CarbonModel.from_bytes(bytes(row.model)))
        if row.with_weather is not None and (sky := fresh_sky(feed, now)) is not None:
            found[WITH_WEATHER] = by_hours(CarbonModel.from_bytes(bytes(row.with_weather)), sky)
    except ValueError as error:
        log.warning("a learned forecast of the carbon feed of %s is not used: %s", feed.site, error)
    return found


class ByHours(Protocol):
    """Forecasts from a grid's hours: (quantiles, steps) in g/kWh."""

    def forecast(self, grid: Grid, steps: int, quantiles: tuple[float, ...]) -> Floats: ...


def can_forecast(feed: CarbonFeed, name: str, now: datetime) -> bool:
    """Says of the model that reads the weather whether it was learned and sees the hours ahead; of others nothing."""
    if name != WITH_WEATHER:
        return True
    learned = LearnedForecast.objects.filter(feed=feed, with_weather__isnull=False).exists()
    return learned and fresh_sky(feed, now) is not None


def fresh_sky(feed: CarbonFeed, now: datetime) -> Sky | None:
    """Returns the site's weather of the last weeks and of the hours ahead; None while an hour ahead lacks its own."""
    hour = hour_of(now)
    sky = weather_history.sky(feed.site, hour - (histories.DAYS + 1) * DAY, hour + LEADS + 1, now)
    ahead = min(LEADS, math.ceil(feeds.forecast_horizon_s() / HOUR_S))
    return sky if weather_history.whole(sky.between(hour, hour + ahead)).all() else None


def by_hours(learned: ByHours, sky: Sky | None = None) -> Model:
    """Returns a model of steps of at most an hour: it sees the mean of each whole hour, and says one value for each.

    `sky`: the weather that it reads beside. It says nothing of an hour whose weather is not there.
    """

    def model(history: History, steps: int, quantile: float) -> Floats:
        if history.day % DAY:
            return np.full(steps, np.nan)
        each = history.day // DAY
        begin, end = -(-history.first_step // each), history.next_step // each
        if end <= begin:
            return np.full(steps, np.nan)
        first = begin * each - history.first_step
        table = history.values[first : first + (end - begin) * each].reshape(-1, each)
        hour = (history.next_step + np.arange(steps)) // each - end
        hours = math.floor(hour[-1]) + 1 if steps else 0
        seen = Grid(begin, _means(table), None if sky is None else sky.between(begin, end + max(hours, LEADS)))
        (ahead,) = learned.forecast(seen.until(seen.carbon.size), hours, (quantile,))
        if seen.weather is not None:
            ahead[~weather_history.whole(seen.weather[end - begin : end - begin + hours])] = np.nan
        found: Floats = np.maximum(ahead[hour], history.floor)
        return found

    return model


def _means(table: Floats) -> Floats:
    """Returns the mean of each row, (hours, steps) to (hours,); NaN where less than half of it is known."""
    known = ~np.isnan(table)
    count = known.sum(axis=1)
    total = np.where(known, table, 0.0).sum(axis=1)
    means: Floats = np.divide(total, count, out=np.full(len(table), np.nan), where=2 * count >= table.shape[1])
    return means
