"""Demand of the recent past, as the sketches of request records have it, divided into the classes of any partition."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.db import connection
from django.db.models import Exists
from numpy.typing import NDArray

from core.algorithms.fleet.arrival_replay import MOST_SEEN
from core.observations.demand.class_arrivals import STRETCH_S, counted
from core.observations.demand.class_view import Declared
from core.observations.demand.loop_windows import first_busy_s, recent_stretches, whole_stretches
from core.observations.fleet.right_size_given import MEMORY_S
from core.observations.mode_profile import Lengths
from core.policy.request_classes import ClassBounds, ClassGrid
from pools.models import Service
from pools.open_requests import open_requests
from scheduler import agents
from telemetry.forecasts import load_forecasts
from telemetry.forecasts.histories import load_step_s
from telemetry.models import DemandSketch, LoadPoint, RequestRecord
from telemetry.storage.sql.demand_sketches import OPEN_END, OUTPUTS, PROMPTS

Floats = NDArray[np.float64]

MOST_RISE = 4.0  # a forecast may not multiply what was seen by more

# A row for each range of lengths: the range, then by stretch what came.
CAME_SQL = """
SELECT prompt_from, max(prompt_to), output_from, max(output_to),
       array_agg(round((date_part('epoch', start_at) - %(start_s)s) / %(stretch_s)s)::int), array_agg(requests),
       array_agg(prompt_tokens), array_agg(output_tokens), array_agg(context_tokens)
FROM telemetry_demandsketch
WHERE service = %(service)s AND start_at >= %(start)s AND start_at < %(end)s AND prompt_from >= 0
GROUP BY prompt_from, output_from
"""

# When the last requests of each class came, with how many prompt tokens, when they ended, and which of them missed one
# of their limits (null: there is none to judge by), oldest first.
CAME_LAST_SQL = """
SELECT request_class, array_agg(date_part('epoch', started_at) ORDER BY started_at),
       array_agg(prompt_tokens ORDER BY started_at),
       array_agg(date_part('epoch', started_at) + coalesce(e2e_s, 0) ORDER BY started_at),
       array_agg(NOT slo_met ORDER BY started_at)
FROM (
    SELECT request_class, started_at, prompt_tokens, e2e_s, slo_met FROM telemetry_requestrecord
    WHERE service = %(service)s AND started_at >= %(start)s AND started_at < %(end)s AND prompt_tokens > 0
    ORDER BY started_at DESC LIMIT %(most)s
) AS last GROUP BY request_class
"""

BORDERS_SQL = f"SELECT ({PROMPTS}), ({OUTPUTS})"  # of the ranges, ascending from 0


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Lengths that are counted together: lower bounds are inclusive, upper ones exclusive."""

    prompt_from: int
    prompt_to: int
    output_from: int
    output_to: int

    def least(self, grid: ClassGrid) -> str:
        """Returns the class of its shortest requests."""
        return grid.name(self.prompt_from, self.output_from)

    def most(self, grid: ClassGrid) -> str:
        """Returns the class of its longest requests."""
        return grid.name(self.prompt_to - 1, self.output_to - 1)


@dataclass(frozen=True, slots=True)
class DemandWindow:
    """Holds what came in whole stretches from `start_s` on; `declared`: the least to plan for.

    `came`: by range of lengths and stretch, (ranges, stretches, 4), requests and their prompt, output and context
    tokens (`ClassArrivals`). `rise`: by what factor the load of each coming step is foreseen to lie above that of the
    window; beyond it 1.
    """

    start_s: float
    ranges: Sequence[LengthRange]
    came: NDArray[np.float64]
    declared: Declared | None = None
    rise: tuple[float, ...] = ()

    @property
    def span_s(self) -> float:
        """The length of the window."""
        return float(self.came.shape[1] * STRETCH_S)

    @property
    def peak_rps(self) -> float:
        """The service's rate in the fullest stretch."""
        return counted(self.came.sum(axis=0)).peak_rps

    def without_requests(self) -> DemandWindow:
        """Returns the window as if nothing had come."""
        return replace(self, ranges=(), came=self.came[:0])

    def by_class(self, classes: Sequence[ClassBounds]) -> dict[str, NDArray[np.float64]]:
        """Divides what came as the gateway does, (stretches, 4) for each class: a pool must carry what is predicted to
        be of its class, whatever comes out.

        A range that two classes share counts as the larger one's: its pools can carry what the smaller one's can.
        """
        grid = ClassGrid(classes)
        names = [own.most(grid) for own in self.ranges]
        return {own.name: self.came[[name == own.name for name in names]].sum(axis=0) for own in classes}

    def first_s(self, look_s: float, classes: Sequence[ClassBounds]) -> dict[str, float | None]:
        """Returns by class when, within the last `look_s`, the first stretch with a request begins; None: none came."""
        first, end = recent_stretches(self.start_s + self.came.shape[1] * STRETCH_S, look_s)
        split = self.by_class(classes)
        return {name: first_busy_s(first, own[own.shape[0] - (end - first) :, 0]) for name, own in split.items()}

    @property
    def begun_s(self) -> float | None:
        """Returns when the first stretch with a request begins; None: nothing came."""
        busy = np.flatnonzero(self.came[:, :, 0].any(axis=0))
        return self.start_s + int(busy[0]) * STRETCH_S if busy.size else None

    @property
    def once_begun(self) -> DemandWindow:
        """Returns what loops that look each few seconds go by: once requests came, these and not what was declared."""
        if self.declared is None or self.begun_s is None:
            return self
        return replace(self, declared=replace(self.declared, rps=0.0))

    def recent(self, look_s: float, classes: Sequence[ClassBounds]) -> dict[str, NDArray[np.float64]]:
        """Returns what came of each class in the last `look_s`, (ranges, 3): requests, prompt and output tokens of each
        of its ranges of lengths."""
        first, end = recent_stretches(self.start_s + self.came.shape[1] * STRETCH_S, look_s)
        grid, came = ClassGrid(classes), self.came[:, self.came.shape[1] - (end - first) :, :3].sum(axis=1)
        names = [own.most(grid) for own in self.ranges]
        return {own.name: came[[name == own.name for name in names]] for own in classes}

    def is_older_than(self, classes: Sequence[ClassBounds]) -> bool:
        """Says whether ranges are shared by classes: requests were counted before these had their bounds."""
        grid = ClassGrid(classes)
        return any(own.least(grid) != own.most(grid) for own in self.ranges)

    def prompt_tokens(self, classes: Sequence[ClassBounds]) -> tuple[float, Mapping[str, list[float]]]:
        """Returns each class's prompt tokens by stretch, and when the first stretch begins: before the first request
        nothing is known, not even silence.
        """
        begun_s, end_s = self.begun_s, self.start_s + self.came.shape[1] * STRETCH_S
        first_s = end_s if begun_s is None else begun_s
        first = round((first_s - self.start_s) / STRETCH_S)
        split = self.by_class(classes)
        return first_s, {name: came[first:, 1].tolist() for name, came in split.items()}


def foreseen(seen: DemandWindow, service: Service, now: datetime, step_s: float, steps: int) -> DemandWindow:
    """Adds the rise that the best load model foresees, once it has a record; recent demand stays the least.

    The service's load as a whole is forecast, and each class follows it: a partition that is not in force has no
    history of its own.
    """
    peak_rps = seen.peak_rps
    if peak_rps <= 0.0 or not math.isclose(step_s, load_step_s()):
        return seen
    ahead = load_forecasts.expected(service.name, "", now, steps)
    if not any(row.chosen for row in ahead.record):
        return seen
    rise = tuple(1.0 if rate is None else min(MOST_RISE, max(1.0, rate / peak_rps)) for rate in ahead.rates_rps)
    return replace(seen, rise=rise)


def arrivals(service: Service, now: datetime, period_s: float) -> DemandWindow:
    """Reads the requests of the last period (between 5 minutes and an hour) that a worker had or should have had: its
    whole stretches, without the one under way. Those that have not ended count by what is predicted of them.
    """
    first, last = whole_stretches(now.timestamp(), period_s)
    start_s = first * STRETCH_S
    start, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (start_s, last * STRETCH_S))
    names: dict[str, Any] = {
        "service": service.name,
        "start_s": start_s,
        "start": start,
        "end": end,
        "stretch_s": STRETCH_S,
    }
    with connection.cursor() as cursor:
        cursor.execute(CAME_SQL, names)
        rows = cursor.fetchall()
    came = np.zeros((len(rows), last - first, 4))
    for own, (*_, at, requests, prompt, output, context) in zip(came, rows, strict=True):
        np.add.at(own, at, np.array([requests, prompt, output, context], dtype=np.float64).T)
    ranges, under_way = _under_way(service, start_s, last - first)
    ranges = [*(LengthRange(*row[:4]) for row in rows), *ranges]
    return DemandWindow(start_s, ranges, np.concatenate([came, under_way]), declared_load(service, now, period_s))


@dataclass(frozen=True, slots=True, eq=False)
class CameLast:
    """The last requests of a class that have ended: when they came and ended, in Unix seconds, their prompt tokens, and
    which of them missed one of their limits (NaN: there is none to judge by). All (requests,)."""

    at_s: Floats
    prompt_tokens: Floats
    ended_s: Floats
    late: Floats


def came_last(service: str, until_s: float) -> dict[str, CameLast]:
    """Reads the last requests of each class that has any on record; those that have not ended are missing."""
    start, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (until_s - MEMORY_S, until_s))
    with connection.cursor() as cursor:
        cursor.execute(CAME_LAST_SQL, {"service": service, "start": start, "end": end, "most": MOST_SEEN})
        rows = cursor.fetchall()
    return {name: CameLast(*(np.array(column, np.float64) for column in columns)) for name, *columns in rows}


def _under_way(service: Service, start_s: float, stretches: int) -> tuple[list[LengthRange], NDArray[np.float64]]:
    """Returns the requests that came in the window and have no record yet, since they have not ended, as in
    `DemandWindow`."""
    found = {
        own.request_id: own
        for own in open_requests(agents.connect(), service.name)
        if start_s <= own.started_at_s < start_s + stretches * STRETCH_S
    }
    if not found:
        return [], np.zeros((0, stretches, 4))
    since = datetime.fromtimestamp(start_s, UTC)
    ended = RequestRecord.objects.filter(started_at__gte=since, request_id__in=list(found))
    for request_id in ended.values_list("request_id", flat=True):
        del found[request_id]
    with connection.cursor() as cursor:
        cursor.execute(BORDERS_SQL)
        [(prompts, outputs)] = cursor.fetchall()
    by_range: dict[LengthRange, NDArray[np.float64]] = {}
    for own in found.values():
        within = LengthRange(*_between(prompts, own.prompt_tokens), *_between(outputs, own.output_tokens))
        mine = by_range.setdefault(within, np.zeros((stretches, 4)))
        prompt, output = float(own.prompt_tokens), float(own.output_tokens)
        at = int((own.started_at_s - start_s) // STRETCH_S)
        mine[at] += (1.0, prompt, output, output * (prompt + output / 2.0))
    return list(by_range), np.array(list(by_range.values())).reshape(len(by_range), stretches, 4)


def _between(borders: Sequence[int], tokens: int) -> tuple[int, int]:
    place = bisect_right(borders, max(0, tokens))
    return borders[place - 1], borders[place] if place < len(borders) else OPEN_END


def declared_load(service: Service, now: datetime, period_s: float) -> Declared | None:
    """Returns the load that the operator expects. Once requests before the last period are on record silence means no
    load.
    """
    start = datetime.fromtimestamp(whole_stretches(now.timestamp(), period_s)[0] * STRETCH_S, UTC)
    if not (service.expected_rps and service.expected_prompt_tokens and service.expected_output_tokens):
        return None
    step = timedelta(seconds=load_step_s())
    sketches = DemandSketch.objects.filter(service=service.name, start_at__lt=start)
    points = LoadPoint.objects.filter(service=service.name, start_at__lte=start - step)
    known = Service.objects.filter(Exists(sketches) | Exists(points), pk=service.pk).exists()
    lengths = Lengths(service.expected_prompt_tokens, service.expected_output_tokens)
    return Declared(0.0 if known else service.expected_rps, lengths)
