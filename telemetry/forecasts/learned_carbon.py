"""Models of `core.predictors.boosted_carbon` for feeds: learned once a day, kept in the database, used by back-tests.

A model is learned from all that a feed measured but the last two weeks, on which back-tests then judge it with the
others: it never saw what it is scored on. Only feeds of average intensity whose days last a day have one.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import numpy as np

from core.predictors.boosted_carbon import CarbonModel
from core.predictors.carbon_features import DAY, Floats, Grid
from core.predictors.carbon_training import MOST_DAYS, TooShort, fit
from core.predictors.seasonal import History, Model
from telemetry.models import CarbonFeed, LearnedForecast

from . import histories

log = logging.getLogger(__name__)

NAME = "trees"
HOUR_S = 3_600.0
HELD_BACK = timedelta(days=histories.DAYS / 2)  # where back-tests have their origins
AGAIN = timedelta(days=1)


def learn_due(now: datetime, budget_s: float) -> int:
    """Learns models for the feeds that were learned longest ago, until the time is used up; returns how many.

    One whose history no model can be made of does not stop the others.
    """
    until, count = time.monotonic() + budget_s, 0
    feeds = CarbonFeed.objects.select_related("site", "learned_forecast").defer("learned_forecast__model")
    for feed in sorted(filter(can_have_one, feeds), key=_tried_at):
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
    begun = time.monotonic()
    try:
        model = fit(Grid(history.first_step, history.values))
    except TooShort as reason:
        _note(feed, now, f"{reason}; the last {HELD_BACK.days} days are kept for back-tests")
        return False
    log.info("learned a forecast for the carbon feed of %s in %.0f s", feed.site, time.monotonic() - begun)
    LearnedForecast.objects.update_or_create(
        feed=feed,
        defaults={"tried_at": now, "learned_at": now, "hours": model.hours, "model": model.to_bytes(), "note": ""},
    )
    return True


def _note(feed: CarbonFeed, now: datetime, note: str) -> None:
    LearnedForecast.objects.update_or_create(feed=feed, defaults={"tried_at": now, "note": note})


def status(feed: CarbonFeed) -> LearnedForecast | None:
    """Returns what a page says of a feed's model, without the model; None: nobody tried to learn one yet."""
    return LearnedForecast.objects.filter(feed=feed).defer("model").first()


def models(feed: CarbonFeed) -> Mapping[str, Model]:
    """Returns the feed's model by its name; nothing where none was learned, or where it cannot be read."""
    row = LearnedForecast.objects.filter(feed=feed, model__isnull=False).first()
    if row is None or row.model is None or not can_have_one(feed):
        return {}
    try:
        return {NAME: by_hours(CarbonModel.from_bytes(bytes(row.model)))}
    except ValueError as error:
        log.warning("the learned forecast of the carbon feed of %s is not used: %s", feed.site, error)
        return {}


def by_hours(learned: CarbonModel) -> Model:
    """Returns a model of steps of at most an hour: it sees the mean of each whole hour, and says one value for each."""

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
        seen = Grid(begin, _means(table))
        (ahead,) = learned.forecast(seen.until(seen.carbon.size), math.floor(hour[-1]) + 1 if steps else 0, (quantile,))
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
