"""The record of forecasts: scores are stored, the best model of the newest run is found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F, Prefetch, QuerySet, Window
from django.db.models.functions import Rank
from django.utils.module_loading import import_string

from core.predictors.back_test import Score
from core.predictors.seasonal import MODELS, Model
from telemetry.models import CarbonFeed, ForecastScore

PROVIDER = "provider"  # the name under which a provider's own forecast is scored
FALL_BACK = "persistence"
_NEWEST = "newest_scores"
EXTRA = "telemetry.forecasts.stats_models.models"


def models() -> Mapping[str, Model]:
    """All that can be had: ours, and statsforecast's where it is installed."""
    extra: Mapping[str, Model] = import_string(EXTRA)()
    return {**MODELS, **extra}


def store(
    scores: Sequence[Score],
    chosen: str | None,
    now: datetime,
    step_s: float,
    steps: int,
    feed: CarbonFeed | None = None,
    service: str = "",
    request_class: str = "",
) -> None:
    """Stores one run's scores of one series, and which of them is used from now on."""
    with transaction.atomic():
        ForecastScore.objects.bulk_create(
            ForecastScore(
                feed=feed,
                service=service,
                request_class=request_class,
                model=score.model,
                scored_at=now,
                step_s=step_s,
                steps=steps,
                origins=score.origins,
                samples=score.samples,
                quantile=score.quantile,
                pinball=score.pinball,
                mape=score.mape,
                coverage=score.coverage,
                regret=score.regret if feed else None,  # load is no price of anything
                chosen=score.model == chosen,
            )
            for score in scores
        )


def newest(feed: CarbonFeed | None = None, service: str = "", request_class: str = "") -> tuple[ForecastScore, ...]:
    """The newest run of a series, least loss first; empty where there was none yet."""
    rows = ForecastScore.objects.filter(feed=feed, service=service, request_class=request_class)
    last = rows.order_by("-scored_at").values_list("scored_at", flat=True).first()
    return () if last is None else tuple(rows.filter(scored_at=last).order_by("pinball", "model"))


def with_newest(feeds: QuerySet[Any]) -> QuerySet[Any]:
    """Has each feed's newest run fetched with it, for lists: `newest_of` then asks for nothing."""
    age = Window(Rank(), partition_by=[F("feed")], order_by=F("scored_at").desc())
    rows = ForecastScore.objects.annotate(age=age).filter(age=1).order_by("pinball", "model")
    return feeds.prefetch_related(Prefetch("forecast_scores", queryset=rows, to_attr=_NEWEST))


def newest_of(feed: CarbonFeed) -> Sequence[ForecastScore]:
    """The newest run of a feed, least loss first, as it was fetched with it or anew."""
    fetched: Sequence[ForecastScore] | None = getattr(feed, _NEWEST, None)
    return newest(feed) if fetched is None else fetched
