"""The load of services by class: its recorded course, forecasts of its peaks, and how good they were.

What is forecast is FREESH's measure of load, the highest 5-second rate of a step, for each of the next six steps of
five minutes. Requests count in the class that the gateway gave them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from core.observations.demand.class_arrivals import STRETCH_S
from core.predictors.back_test import back_test, rolling_origins
from pools.models import Service
from telemetry.models import ForecastScore, LoadPoint, RequestRecord
from telemetry.models.demand import KEPT_S

from . import forecast_record as record
from . import histories, load_networks
from .learned import LSTM

STEPS = 6
ORIGINS = 24
QUANTILE = 0.9
SETTLE_S = 20.0  # records come so late, usually; a few steps back are counted anew each time
AGAIN_STEPS = 3
FIRST_S = 86_400.0  # how far back the first count goes
MOST_STEPS = 2_016
SKETCHED_S = KEPT_S / 2  # steps that began longer ago are counted from records
KEPT_DAYS = 2 * histories.DAYS

# By class, "" for all of them together: from `sketched` on as sketches have it, before that as records.
PEAKS_SQL = """
SELECT service, coalesce(class, '') AS class, floor(extract(epoch FROM start_at) / %(step_s)s)::bigint AS step,
       max(n) AS peak, sum(n) AS requests
FROM (
    SELECT service, class, start_at, sum(n) AS n FROM (
        SELECT service, coalesce(request_class, '') AS class, count(*) AS n,
               date_bin(%(stretch)s, started_at, TIMESTAMPTZ '1970-01-01 00:00+00') AS start_at
        FROM telemetry_requestrecord
        WHERE started_at >= %(start)s AND started_at < %(sketched)s AND status <> %(refused)s
        GROUP BY 1, 2, 4
        UNION ALL
        SELECT service, request_class, requests, start_at FROM telemetry_demandsketch
        WHERE start_at >= %(sketched)s AND start_at < %(end)s AND requests > 0
    ) AS seen GROUP BY GROUPING SETS ((service, class, start_at), (service, start_at))
) AS counts
WHERE class IS DISTINCT FROM ''
GROUP BY 1, 2, 3
"""

RAN_SQL = """
SELECT step FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS step WHERE EXISTS (
    SELECT FROM telemetry_gpusample
    WHERE at >= to_timestamp(step * %(step_s)s) AND at < to_timestamp((step + 1) * %(step_s)s)
)
"""


def record_load(now: datetime) -> int:
    """Counts the steps that are over and not yet counted; returns the points written. Counting twice is harmless."""
    step_s = histories.load_step_s()
    last = math.floor((now.timestamp() - SETTLE_S) / step_s)
    past = LoadPoint.objects.filter(step_s=step_s, start_at__lte=now)  # others: before the clock was set back
    newest = past.order_by("-start_at").values_list("start_at", flat=True).first()
    first = math.floor((now.timestamp() - FIRST_S) / step_s)
    if newest is not None:
        first = round(newest.timestamp() / step_s) + 1 - AGAIN_STEPS
    first = max(first, last - MOST_STEPS)
    if first >= last:
        return 0
    points = _counted(first, last, step_s)
    _fill_quiet_steps(points, first, last, step_s)
    LoadPoint.objects.bulk_create(
        points.values(),
        update_conflicts=True,
        unique_fields=["service", "step_s", "request_class", "start_at"],
        update_fields=["peak_rps", "requests"],
        batch_size=1000,
    )
    LoadPoint.objects.filter(start_at__lt=now - timedelta(seconds=KEPT_DAYS * histories.DAY_S)).delete()
    return len(points)


def _counted(first: int, last: int, step_s: float) -> dict[tuple[str, str, int], LoadPoint]:
    """Counts requests by service, class and step. A service's fault or a full queue is load; a bad request is not."""
    window: dict[str, Any] = {
        "start": _moment(first * step_s),
        "sketched": _moment(max(first, last - math.floor(SKETCHED_S / step_s)) * step_s),
        "end": _moment(last * step_s),
        "step_s": step_s,
        "stretch": timedelta(seconds=STRETCH_S),
        "refused": RequestRecord.Status.CLIENT_ERROR.value,
    }
    with connection.cursor() as cursor:
        cursor.execute(PEAKS_SQL, window)
        rows = cursor.fetchall()
    return {
        (service, name, step): _point(service, name, step, step_s, float(peak) / STRETCH_S, int(requests))
        for service, name, step, peak, requests in rows
        if step >= first  # a stretch counts where it begins
    }


def _fill_quiet_steps(points: dict[tuple[str, str, int], LoadPoint], first: int, last: int, step_s: float) -> None:
    """Zeros for steps without a request in which GPUs were sampled: GreenServe ran, and nobody asked for anything.

    What was never asked for has no zeros before its first request.
    """
    since = _moment(last * step_s) - timedelta(seconds=histories.DAYS * histories.DAY_S)
    recent = LoadPoint.objects.filter(step_s=step_s, start_at__gte=since, peak_rps__gt=0.0)
    begins = dict.fromkeys(recent.values_list("service", "request_class").distinct(), first)
    for service, name, step in sorted(points, key=lambda key: key[2]):
        begins.setdefault((service, name), step)
    if not begins:
        return
    ran = _ran(min(begins.values()), last, step_s)
    for key, begin in begins.items():
        for step in ran:
            if step >= begin and (*key, step) not in points:
                points[*key, step] = _point(*key, step, step_s, 0.0, 0)


def _ran(first: int, last: int, step_s: float) -> list[int]:
    """Returns the steps in [first, last) in which a GPU was sampled."""
    with connection.cursor() as cursor:
        cursor.execute(RAN_SQL, {"first": first, "last": last - 1, "step_s": step_s})
        return [row[0] for row in cursor.fetchall()]


def _point(service: str, name: str, step: int, step_s: float, peak_rps: float, requests: int) -> LoadPoint:
    return LoadPoint(
        service=service,
        request_class=name,
        start_at=_moment(step * step_s),
        step_s=step_s,
        peak_rps=peak_rps,
        requests=requests,
    )


@dataclass(frozen=True, slots=True)
class LoadForecast:
    """The peak rates of the next steps, the first being the one under way, and the model's record.

    `rates_rps` are at `quantile` of what may come, `median_rps` in the middle of it; None: the model cannot say.
    """

    service: str
    request_class: str
    model: str
    start_s: float
    step_s: float
    quantile: float
    rates_rps: tuple[float | None, ...]
    median_rps: tuple[float | None, ...]
    record: tuple[ForecastScore, ...] = ()


def classes(service: str, now: datetime) -> tuple[str, ...]:
    """Returns the classes with requests in the last `histories.DAYS` days; "" is all of them together."""
    since = now - timedelta(days=histories.DAYS)
    rows = LoadPoint.objects.filter(
        service=service, step_s=histories.load_step_s(), start_at__gte=since, peak_rps__gt=0.0
    )
    return tuple(sorted(rows.values_list("request_class", flat=True).distinct()))


def upcoming(service: str, now: datetime, steps: int = STEPS) -> Mapping[str, LoadForecast]:
    """Returns by class the forecast of the newest back-test's best model; carried forward where there was none yet."""
    return {name: expected(service, name, now, steps) for name in classes(service, now)}


def expected(service: str, request_class: str, now: datetime, steps: int = STEPS) -> LoadForecast:
    """Returns the forecast of one class's load; "" is all classes together."""
    history = histories.load(service, request_class, now)
    records = record.newest(service=service, request_class=request_class)
    step_s = histories.load_step_s()
    chosen = next((row.model for row in records if row.chosen), record.FALL_BACK)
    known = record.models()
    if chosen == LSTM:
        known = {**known, **load_networks.kept(service, request_class, step_s)}
    model = chosen if chosen in known else record.FALL_BACK
    upper, median = (
        tuple(None if math.isnan(rate) else float(rate) for rate in known[model](history, steps, quantile))
        for quantile in (QUANTILE, 0.5)
    )
    start_s = history.next_step * step_s
    return LoadForecast(service, request_class, model, start_s, step_s, QUANTILE, upper, median, records)


def score_due(now: datetime, period_s: float, budget_s: float) -> int:
    """Scores the series whose record is oldest until the time is used up; returns how many."""
    until, count = time.monotonic() + budget_s, 0
    names = [(s, name) for s in Service.objects.values_list("name", flat=True) for name in classes(s, now)]
    ages = {key: _scored_at(*key, now) for key in names}
    for service, name in sorted(names, key=lambda key: ages[key]):
        if time.monotonic() >= until or ages[service, name] > now - timedelta(seconds=period_s):
            break
        score(service, name, now)
        count += 1
    return count


def _scored_at(service: str, name: str, now: datetime) -> datetime:
    """Returns when it was scored last. What lies ahead of `now` does not count: the clock was set back since."""
    rows = ForecastScore.objects.filter(feed=None, service=service, request_class=name, scored_at__lte=now)
    last = rows.order_by("-scored_at").values_list("scored_at", flat=True).first()
    return last or datetime.min.replace(tzinfo=UTC)


def score(service: str, request_class: str, now: datetime) -> None:
    """Back-tests all models on one series and stores what came of it; learns the network anew if it is the best."""
    history, step_s = histories.load(service, request_class, now), histories.load_step_s()
    origins = rolling_origins(history.values.size, STEPS, ORIGINS, history.day)
    models = {**record.models(), **load_networks.to_score(history, origins, STEPS)}
    scores = back_test(history, models, origins, STEPS, QUANTILE)
    best = scores[0].model if scores else None
    if best == LSTM:
        load_networks.keep(service, request_class, history, STEPS, step_s, now)
    record.store(scores, best, now, step_s, STEPS, service=service, request_class=request_class)


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
