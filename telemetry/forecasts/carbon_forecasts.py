"""Forecasts of a feed's signal: which is best, its own or a model's, and the model's points where one is used."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from core.ports import IntensityPoint
from core.predictors.back_test import Score, back_test, coverage, rolling_origins
from core.predictors.seasonal import Floats, History, Model
from telemetry.carbon import feeds
from telemetry.models import CarbonFeed, CarbonPoint, ForecastScore

from . import carbon_networks, forecast_record, histories, learned_carbon

ORIGINS = 24
QUANTILE = 0.5
INTERVALS_EACH = 3  # of the origins intervals are judged from one in so many: they take longer than medians
INTERVALS_S = 10.0  # for a model; of one that takes longer it is not known what its intervals cover
ISSUE_S = 1_800.0  # a model's forecast is made anew so often, or each step where steps are longer; each issue is kept
MAKER = "greenserve"


def score_due(now: datetime, period_s: float, budget_s: float) -> int:
    """Scores the feeds whose record is oldest until the time is used up; returns how many."""
    until, count = time.monotonic() + budget_s, 0
    for feed in sorted(CarbonFeed.objects.select_related("site"), key=lambda feed: _scored_at(feed, now)):
        if time.monotonic() >= until or _scored_at(feed, now) > now - timedelta(seconds=period_s):
            break
        score(feed, now)
        count += 1
    return count


def _scored_at(feed: CarbonFeed, now: datetime) -> datetime:
    """Returns when it was scored last. What lies ahead of `now` does not count: the clock was set back since."""
    rows = ForecastScore.objects.filter(feed=feed, scored_at__lte=now)
    last = rows.order_by("-scored_at").values_list("scored_at", flat=True).first()
    return last or datetime.min.replace(tzinfo=UTC)


def score(feed: CarbonFeed, now: datetime) -> tuple[Score, ...]:
    """Back-tests all models and the provider's own forecast, stores what came of it and has the best one used.

    A provider that forecasts is believed until it has a record to compare.
    """
    step_s = histories.step_s(feed)
    if step_s is None:
        return ()
    history = histories.carbon(feed, now, step_s)
    steps = max(1, min(history.day, round(feeds.forecast_horizon_s() / step_s)))
    origins = rolling_origins(history.values.size, steps, ORIGINS, history.day)
    own = own_forecasts(feed, history, step_s, origins, steps) if origins else None
    given = {} if own is None else {forecast_record.PROVIDER: own}
    models = _models(feed, now)
    scores = back_test(history, models, origins, steps, QUANTILE, given)
    scores = tuple(_with_coverage(score, models, history, origins, steps) for score in scores)
    scored = {score.model for score in scores}
    unproven = forecasts_itself(feed, now) and forecast_record.PROVIDER not in scored
    chosen = scores[0].model if scores and not unproven else None
    forecast_record.store(scores, chosen, now, step_s, steps, feed=feed)
    best = chosen or (forecast_record.PROVIDER if unproven else forecast_record.FALL_BACK)
    model = "" if best == forecast_record.PROVIDER else best
    CarbonFeed.objects.filter(pk=feed.pk).update(forecast_model=model)
    feed.forecast_model = model
    return scores


def _with_coverage(
    score: Score, models: Mapping[str, Model], history: History, origins: Sequence[int], steps: int
) -> Score:
    """Adds what a model's intervals cover; a provider's own forecast has none."""
    if score.model not in models:
        return score
    until = time.monotonic() + INTERVALS_S
    some = origins[::INTERVALS_EACH]
    found = coverage(history, models[score.model], some, steps, lambda: time.monotonic() < until)
    return replace(score, coverage=found)


def _models(feed: CarbonFeed, now: datetime) -> Mapping[str, Model]:
    return {
        **forecast_record.models(),
        **learned_carbon.models(feed, now),
        **carbon_networks.models(feed, now),
    }


def _model(feed: CarbonFeed, name: str, now: datetime) -> Model | None:
    """Returns a model by its name. Only for one that was learned its arrays are read from the database."""
    return forecast_record.models().get(name) or _models(feed, now).get(name)


def forecasts_itself(feed: CarbonFeed, now: datetime) -> bool:
    """Returns whether the provider's own forecast reaches beyond now."""
    return feed.points.filter(forecast=True, model="", end_at__gt=now).exists()


def own_forecasts(
    feed: CarbonFeed, history: History, step_s: float, origins: Sequence[int], steps: int
) -> Floats | None:
    """Returns what the provider forecast from each origin on, by the issues that were out then; None: it never did."""
    base_s = history.first_step * step_s
    rows = list(
        CarbonPoint.objects.filter(
            feed=feed,
            forecast=True,
            model="",
            end_at__gt=_moment(base_s + origins[0] * step_s),
            start_at__lt=_moment(base_s + (origins[-1] + steps) * step_s),
        )
        .order_by("issued_at", "id")
        .values_list("start_at", "end_at", histories.value_field(feed), "issued_at")
    )
    if not rows:
        return None
    found = np.full((len(origins), steps), np.nan)
    for number, at in enumerate(origins):
        origin_s = base_s + at * step_s
        known = {a: (b, value) for a, b, value, issued in rows if issued.timestamp() <= origin_s}
        spells = ((a.timestamp(), b.timestamp(), value) for a, (b, value) in known.items())
        found[number] = histories.on_grid(spells, origin_s, step_s, steps)
    return found


def extend(feed: CarbonFeed, now: datetime) -> int:
    """Makes the chosen model's forecast where it is time; returns the points stored. Without a model it does nothing.

    A feed whose provider does not forecast and that has no record yet is carried forward (persistence).
    """
    model = feed.forecast_model
    if not model:
        if forecasts_itself(feed, now):
            return 0
        model = forecast_record.FALL_BACK
        CarbonFeed.objects.filter(pk=feed.pk).update(forecast_model=model)
    if not learned_carbon.can_forecast(feed, model, now):
        model = _use_next_best(feed, model)
    step_s = histories.step_s(feed)
    if not model or step_s is None or not _due(feed, model, now, step_s):
        return 0
    history = histories.carbon(feed, now, step_s)
    horizon_s = feeds.forecast_horizon_s()
    steps = math.ceil((now.timestamp() + horizon_s) / step_s) - history.next_step
    forecast = _model(feed, model, now)
    if steps < 1 or history.values.size == 0 or forecast is None:
        return 0
    values = forecast(history, steps, QUANTILE)
    return feeds.append(feed, _points(feed, history, step_s, values, now), now, model)


def _use_next_best(feed: CarbonFeed, lost: str) -> str:
    """Has the best of the other models used until the next back-test; returns it, empty for the provider's own."""
    others = (score.model for score in forecast_record.newest(feed) if score.model != lost)
    best = next(others, forecast_record.FALL_BACK)
    feed.forecast_model = "" if best == forecast_record.PROVIDER else best
    CarbonFeed.objects.filter(pk=feed.pk).update(forecast_model=feed.forecast_model)
    return feed.forecast_model


def _due(feed: CarbonFeed, model: str, now: datetime, step_s: float) -> bool:
    last = feed.points.filter(model=model, forecast=True).order_by("-issued_at").values_list("issued_at", flat=True)
    period_s = max(step_s, ISSUE_S * histories.day_s(feed) / histories.DAY_S)
    return not last.exists() or last[0] <= now - timedelta(seconds=period_s)


def _points(feed: CarbonFeed, history: History, step_s: float, values: Floats, now: datetime) -> list[IntensityPoint]:
    """Returns points from the first step that is not measured yet; those that are unknown are left out."""
    priced = feed.signal == CarbonFeed.Signal.PRICE
    newest = feed.points.filter(forecast=False).order_by("-start_at").first()
    currency = newest.currency if newest else ""
    found = []
    for number, value in enumerate(values.tolist()):
        if math.isnan(value):
            continue
        start_s = (history.next_step + number) * step_s
        found.append(
            IntensityPoint(
                zone=feeds.zone(feed),
                start_s=start_s,
                end_s=start_s + step_s,
                value_g_per_kwh=None if priced else value,
                raw_value=value,
                raw_unit=f"{currency}/kWh" if priced else "gCO2e/kWh",
                signal=feed.signal,
                factor="" if priced or newest is None else feed.factor or newest.factor,
                estimated=True,
                issued_at_s=now.timestamp(),
                forecast=True,
                provider=MAKER,
                price_per_kwh=value if priced else None,
                currency=currency,
            )
        )
    return found


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
