"""Residuals: by how much engines that serve differ from what is predicted of them, written for all processes to read.

Each turn reads the last minute of reports of a few engines of each configuration, others each time where there are
many, and adds their windows to the configuration's row. A window counts once: the row's state holds until when each
engine's reports were used. A row that another profile is in force for begins anew, since its ratios are relative to
the one before.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.db import transaction
from django.db.models import Count

from core.engine import measured
from core.engine.calibration import Calibration, Ratio, Window, ratio
from core.engine.corrections import Configuration, Correction, configuration
from core.engine.engine_model import UnknownConfiguration
from core.engine.iteration import IterationCosts, Totals
from core.ports import EngineLimits
from core.units import US_PER_S
from pools import database_locks
from pools.database_locks import Lock
from pools.models import EngineResidual, Instance, InstanceGpu
from telemetry.calibration.report_windows import EngineReports, Readings, windows
from telemetry.selectors import _sql as sql
from telemetry.storage import copying

log = logging.getLogger(__name__)

STRETCH_S = 60.0  # of reports that a turn reads: twice its period, so that none is lost when one comes late
SETTLE_S = 3.0  # younger reports may still be on their way
MOST_ENGINES = 8  # of a configuration in one turn
PROMPTS_S = 600.0  # of records that say how long prompts are
NEAR_TDP = 0.97  # share of the TDP from which on GPUs may throttle, so that their clock is not the one reported

# One pass over a minute of each table, found by time; what is not of these engines goes no further.
REPORTS_SQL = """
SELECT instance_id, at, (state = 'ready')::int::bigint, coalesce(running::float8, 'NaN'),
       coalesce(kv_usage, 'NaN'), coalesce(prompt_tokens_total, 'NaN'),
       coalesce(generation_tokens_total, 'NaN'), coalesce(sm_clock_mhz, 'NaN')
FROM telemetry_instancesample
WHERE at > %(since)s AND at <= %(until)s AND instance_id = ANY(%(engines)s)
"""
_REPORTS = {
    "engine": copying.BIGINT,
    "at": copying.MOMENT,
    "serving": copying.BIGINT,
    **dict.fromkeys(("running", "kv_usage", "prompt_tokens", "generated_tokens", "mhz"), copying.DOUBLE),
}
READINGS_SQL = """
SELECT instance_id, gpu_id, at, energy_j FROM telemetry_gpusample
WHERE at > %(since)s AND at <= %(until)s AND instance_id = ANY(%(engines)s) AND energy_j IS NOT NULL
"""
_READINGS = {"engine": copying.BIGINT, "gpu": copying.BIGINT, "at": copying.MOMENT, "energy_j": copying.DOUBLE}
PROMPTS_SQL = """
SELECT service, request_class, sum(prompt_tokens)::float8 AS tokens, sum(requests)::float8 AS requests
FROM telemetry_demandsketch WHERE start_at > %(since)s AND prompt_from >= 0 GROUP BY 1, 2 HAVING sum(requests) > 0
"""


@dataclass(frozen=True, slots=True)
class _Engine:
    pk: int
    key: Configuration
    service: str
    request_class: str
    chunk_tokens: int = 0  # of one prompt in an iteration; 0: all


def calibrate(now: datetime, limits: Mapping[str, EngineLimits]) -> int:
    """Adds what engines reported of late to the residuals of their configurations; returns the windows that counted.

    `limits`: those in force in each engine that can say so, by its uid; others are vLLM's own.
    """
    by_key = _engines(now, limits)
    chosen = [engine.pk for engines in by_key.values() for engine in engines]
    if not chosen:
        return 0
    until = now - timedelta(seconds=SETTLE_S)
    span = {"since": until - timedelta(seconds=STRETCH_S), "until": until, "engines": chosen}
    reports, meters, prompts = _reports(span), _meters(span), _prompt_means(now)
    with transaction.atomic():
        if not database_locks.try_to_take(Lock.CALIBRATION):
            return 0
        rows = {row.configuration: row for row in EngineResidual.objects.all()}
        return sum(
            _calibrate(key, rows.get(key), engines, reports, meters, prompts, until) for key, engines in by_key.items()
        )


def _calibrate(
    key: Configuration,
    row: EngineResidual | None,
    engines: Iterable[_Engine],
    reports: Mapping[int, EngineReports],
    meters: Mapping[int, Mapping[int, Readings]],
    prompts: Mapping[tuple[str, str], float],
    until: datetime,
) -> int:
    """Writes one configuration's row; returns the windows that counted."""
    try:
        costs = measured.uncalibrated(key)
    except UnknownConfiguration:
        return 0
    gpu = costs.gpu_params
    base = measured.version_of(key)
    known = row.state if row is not None and row.state.get("base", "") == base else {}
    used: dict[str, float] = dict(known.get("used", {}))
    seen: list[tuple[Window, Ratio]] = []
    for engine in engines:
        if engine.pk not in reports:
            continue
        prompt_mean = prompts.get((engine.service, engine.request_class)) or prompts.get((engine.service, ""))
        since_s = used.get(str(engine.pk), 0.0)
        for window in windows(
            reports[engine.pk], meters.get(engine.pk, {}), key.tp, costs.kv_capacity_tokens, prompt_mean, since_s
        ):
            used[str(engine.pk)] = window.at_s
            if not _throttles(window, costs, key.tp * gpu.tdp_w) and (
                found := ratio(window, costs, engine.chunk_tokens)
            ):
                seen.append((window, found))
    if not seen and (row is None or known):
        return 0
    calibration = Calibration.of_state(known)
    for window, found in sorted(seen, key=lambda pair: pair[0].at_s):
        calibration = calibration.add(window, found, gpu)
    oldest_s = until.timestamp() - STRETCH_S
    state = calibration.state() | {"base": base, "used": {pk: at_s for pk, at_s in used.items() if at_s >= oldest_s}}
    in_force = row.correction if row is not None and known else None
    _write(key, calibration, calibration.residual(in_force), state, until)
    return len(seen)


def _throttles(window: Window, costs: IterationCosts, tdp_w: float) -> bool:
    """Says whether its GPUs may have been slower than the clock that was reported, to keep their TDP."""
    if window.joules is not None and window.joules / window.seconds > NEAR_TDP * tdp_w:
        return True
    decodes = ((span.mhz, Totals(decodes=span.running, context_tokens=span.kv_tokens)) for span in window.spans)
    return any(costs.iteration_of(mhz, decode).watts > NEAR_TDP * tdp_w for mhz, decode in decodes)


def _write(
    key: Configuration, calibration: Calibration, residual: Correction | None, state: dict[str, Any], until: datetime
) -> None:
    time_drift, power_drift = calibration.drift
    at = until if calibration.at_s is None else datetime.fromtimestamp(calibration.at_s, UTC)
    EngineResidual.objects.update_or_create(
        shape=key.shape,
        gpu_type=key.gpu,
        tp=key.tp,
        engine=key.engine,
        defaults={
            "time": [] if residual is None else list(residual.time),
            "power": [] if residual is None else list(residual.power),
            "state": state,
            "windows": calibration.time.windows,
            "time_drift": time_drift,
            "power_drift": power_drift,
            "drifted": calibration.drifted,
            "at": at,
        },
    )


# -- what is read ----------------------------------------------------------------------------------------


def _engines(now: datetime, limits: Mapping[str, EngineLimits]) -> dict[Configuration, list[_Engine]]:
    """Returns the engines of this turn by configuration.

    Left out are those that share GPUs with another one, or may, since meters say nothing of each, those whose requests
    are split, since caches that are kept for others count as theirs, and those that were on other GPUs meanwhile.
    """
    since = now - timedelta(seconds=STRETCH_S + SETTLE_S)
    shared = InstanceGpu.objects.filter(released_at=None).values("gpu").annotate(n=Count("pk")).filter(n__gt=1)
    live = (
        Instance.objects.filter(state=Instance.State.READY, desired=Instance.Desired.RUNNING, node__isnull=False)
        .exclude(node__gpu_slices__gt=1)
        .exclude(reshard_at__isnull=False, resharded_at__isnull=True)
        .exclude(resharded_at__gt=since)
        .exclude(gpu_holds__in=InstanceGpu.objects.filter(released_at=None, gpu__in=shared.values("gpu")))
        .select_related("model_card", "pool__service", "pool__request_class")
        .order_by("pk")
    )
    whole: dict[int, bool] = {}
    found: dict[Configuration, list[_Engine]] = defaultdict(list)
    for instance in live:
        service, card = instance.pool.service, instance.model_card
        if service.pk not in whole:
            whole[service.pk] = service.policy_knobs().split == "none"
        if whole[service.pk]:
            key = configuration(card.engine_model_name, instance.gpu_type, instance.tp, card.engine)
            own = limits.get(str(instance.uid), EngineLimits())
            most = min(own.chunk_tokens or own.max_num_batched_tokens, own.max_num_batched_tokens)
            found[key].append(_Engine(instance.pk, key, service.name, instance.pool.request_class.name, most))
    turn = int(now.timestamp() // (STRETCH_S / 2.0))
    return {key: _some(engines, turn) for key, engines in found.items()}


def _some(engines: Sequence[_Engine], turn: int) -> list[_Engine]:
    """Returns at most `MOST_ENGINES`, others after a few turns: two in a row are of the same, so that none is cut."""
    if len(engines) <= MOST_ENGINES:
        return list(engines)
    first = turn // 2 * MOST_ENGINES % len(engines)
    return [*engines, *engines][first : first + MOST_ENGINES]


def _reports(span: Mapping[str, Any]) -> dict[int, EngineReports]:
    columns = copying.read(REPORTS_SQL, span, _REPORTS)
    order = np.lexsort((columns["at"], columns["engine"]))
    columns = {name: values[order] for name, values in columns.items()}
    found = {}
    for pk, part in _parts(columns.pop("engine")):
        one = {name: values[part] for name, values in columns.items()}
        found[pk] = EngineReports(at_s=one.pop("at") / US_PER_S, serving=one.pop("serving").astype(np.bool_), **one)
    return found


def _meters(span: Mapping[str, Any]) -> dict[int, dict[int, Readings]]:
    columns = copying.read(READINGS_SQL, span, _READINGS)
    order = np.lexsort((columns["at"], columns["gpu"], columns["engine"]))
    engine, gpu, at, energy_j = (columns[name][order] for name in _READINGS)
    found: dict[int, dict[int, Readings]] = defaultdict(dict)
    for pk, of_engine in _parts(engine):
        start = of_engine.start
        for gpu_pk, part in _parts(gpu[of_engine]):
            rows = slice(start + part.start, start + part.stop)
            found[pk][gpu_pk] = Readings(at[rows] / US_PER_S, energy_j[rows])
    return found


def _parts(keys: np.ndarray[Any, Any]) -> Iterable[tuple[int, slice]]:
    """Yields each key of a sorted array, and where it stands."""
    borders = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
    return [(int(keys[a]), slice(a, b)) for a, b in itertools.pairwise(borders) if b > a]


def _prompt_means(now: datetime) -> dict[tuple[str, str], float]:
    """Returns the mean tokens of prompts of late by service and class; class "": of all of the service."""
    tokens: dict[tuple[str, str], float] = defaultdict(float)
    requests: dict[tuple[str, str], float] = defaultdict(float)
    for row in sql.rows(PROMPTS_SQL, {"since": now - timedelta(seconds=PROMPTS_S)}):
        for key in {(row.service, row.request_class), (row.service, "")}:
            tokens[key] += row.tokens
            requests[key] += row.requests
    return {key: tokens[key] / count for key, count in requests.items() if tokens[key] > 0.0}
