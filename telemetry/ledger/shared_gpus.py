"""Looks up who shared GPUs that are cut into slices, and divides what their meters counted (`core.accounting`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db import connection

from core.accounting.counters import Slices
from core.accounting.gpu_sharing import Sharer, divided
from core.accounting.token_time import token_time_of
from core.engine import gpu_slices
from core.engine.engine_params import GPUS
from pools.models import Instance, InstanceGpu
from telemetry.ledger.energy_entries import INTERVAL_S
from telemetry.ledger.watermarks import micros, moment

FOR_EVER_US = 1 << 62
# What each engine's counters of tokens went up by, by interval: a counter that starts anew has counted nothing.
TOKENS_SQL = f"""
SELECT instance_id, floor(extract(epoch FROM at) / {INTERVAL_S})::bigint,
       coalesce(sum(greatest(0, prompts)), 0)::float8, coalesce(sum(greatest(0, outputs)), 0)::float8
FROM (
    SELECT instance_id, at, prompt_tokens_total - lag(prompt_tokens_total) OVER w AS prompts,
           generation_tokens_total - lag(generation_tokens_total) OVER w AS outputs
    FROM telemetry_instancesample
    WHERE instance_id = ANY(%(instances)s) AND at >= %(start)s AND at < %(end)s
    WINDOW w AS (PARTITION BY instance_id ORDER BY at)
) deltas GROUP BY 1, 2
"""


def by_engine(gpu_ids: Sequence[int], found: Sequence[Slices]) -> list[Slices]:
    """Returns the energy of each GPU by the engines that have slices of it; of others as it is."""
    spans = [(int(one.start_us.min()), int(one.end_us.max())) for one in found if len(one)]
    if not spans:
        return list(found)
    start, end = moment(min(span[0] for span in spans)), moment(max(span[1] for span in spans))
    holds = (
        InstanceGpu.objects.filter(gpu__in=gpu_ids, instance__gpu_type__contains=gpu_slices.SEPARATOR)
        .exclude(released_at__lte=start)
        .select_related("instance__model_card")
    )
    on_gpu: dict[int, list[InstanceGpu]] = defaultdict(list)
    for hold in holds:
        on_gpu[hold.gpu_id].append(hold)
    if not on_gpu:
        return list(found)
    work = _work({hold.instance for own in on_gpu.values() for hold in own}, start, end)
    return [
        _divided(one, on_gpu[gpu_id], work) if gpu_id in on_gpu else one
        for gpu_id, one in zip(gpu_ids, found, strict=True)
    ]


def _divided(found: Slices, holds: Sequence[InstanceGpu], work: Mapping[int, Mapping[int, float]]) -> Slices:
    gpu_type, count = gpu_slices.whole(holds[0].instance.gpu_type)
    sharers = [
        Sharer(
            hold.instance_id,
            micros(hold.instance.created_at),
            FOR_EVER_US if hold.released_at is None else micros(hold.released_at),
            work.get(hold.instance_id, {}),
        )
        for hold in holds
    ]
    idle_w = GPUS[gpu_type].idle_w if gpu_type in GPUS else 0.0
    return divided(found, sharers, count, idle_w)


def _work(instances: set[Instance], start: datetime, end: datetime) -> dict[int, dict[int, float]]:
    """Returns by instance and interval for how long its tokens keep its engine busy, by the engine model."""
    weights = {
        own.pk: token_time_of(
            own.model_card.name, own.model_card.engine_model_name, own.gpu_type, own.tp, own.model_card.engine
        )
        for own in instances
    }
    since = start - timedelta(seconds=INTERVAL_S)  # of the first interval too, what came since the sample before
    found: dict[int, dict[int, float]] = defaultdict(dict)
    with connection.cursor() as cursor:
        cursor.execute(TOKENS_SQL, {"instances": list(weights), "start": since, "end": end})
        for pk, interval, prompts, outputs in cursor.fetchall():
            found[pk][interval] = prompts * weights[pk].prefill_s + outputs * weights[pk].decode_s
    return found
