"""Request records as the ledger sees them: which instance they kept busy when, and whose they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from core.accounting.allocation import RequestSpans, TokenTime
from core.accounting.token_time import OTHERS, token_time_of
from core.units import US_PER_S
from pools.models import Instance, Site
from telemetry.ledger.window_sources import LONGEST_REQUEST_S

Ints = NDArray[np.int64]

SERVED_SQL = """
SELECT (extract(epoch FROM r.started_at) * 1000000)::bigint, r.request_id, r.service, r.tenant_id,
       coalesce(r.adapter, ''), r.pool_id, coalesce(i.id, 0), coalesce(r.prompt_tokens, 0),
       coalesce(r.output_tokens, 0), coalesce(r.queue_s, 0.0), coalesce(r.ttft_s, -1.0), coalesce(r.e2e_s, -1.0)
FROM telemetry_requestrecord r LEFT JOIN pools_instance i ON i.uid = r.instance_uid
WHERE r.pool_id = ANY(%s) AND r.started_at >= %s AND r.started_at < %s ORDER BY r.started_at, r.request_id
"""


class Whose(NamedTuple):
    """Says what a line is about. `adapter` empty: the requests named the service itself."""

    service: str
    tenant_id: int | None
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """Requests by column. `who` is each one's place in `whose`; its first is nobody.

    `requests`: how many each row stands for, which is 1 of all that are on record.
    """

    spans: RequestSpans
    request_id: Sequence[str]
    started_us: Ints
    pool: Ints
    who: Ints
    whose: Sequence[Whose]
    requests: Ints
    prompt_tokens: Ints
    output_tokens: Ints


def served(site: Site, start: datetime, end: datetime) -> Served:
    """Requests to the site's pools that may have run in [start, end), in order of their start."""
    pools = list(site.pools.values_list("pk", flat=True))
    since = start - timedelta(seconds=LONGEST_REQUEST_S)
    with connection.cursor() as cursor:
        cursor.execute(SERVED_SQL, [pools, since, end])
        rows: list[Any] = cursor.fetchall()
    columns = list(zip(*rows, strict=True)) or [()] * 12
    started_us, request_id, service, tenant, adapter, pool, instance, prompt, output, queue_s, ttft_s, e2e_s = columns
    places = {Whose("", None): 0}
    who = _ints([places.setdefault(key, len(places)) for key in map(Whose, service, tenant, adapter)])
    started, instances = _ints(started_us), _ints(instance)
    spans = _spans(started, instances, _ints(prompt), _ints(output), *(_micros(v) for v in (queue_s, ttft_s, e2e_s)))
    tokens = _ints(prompt), _ints(output)
    return Served(spans, request_id, started, _ints(pool), who, list(places), np.ones_like(started), *tokens)


def token_time(instance: Instance) -> TokenTime:
    card = instance.model_card
    return token_time_of(card.name, card.engine_model_name, instance.gpu_type, instance.tp, card.engine)


def _spans(
    started_us: Ints, instance: Ints, prompt: Ints, output: Ints, queue_us: Ints, ttft_us: Ints, e2e_us: Ints
) -> RequestSpans:
    """Without a time to the first token both phases are spread over the whole; without an end there is nothing."""
    ids, place = np.unique(instance, return_inverse=True)
    known = {i.pk: token_time(i) for i in Instance.objects.filter(pk__in=ids.tolist()).select_related("model_card")}
    times = [known.get(pk, OTHERS) for pk in ids.tolist()]
    ended = e2e_us >= 0
    end = started_us + np.where(ended, e2e_us, 0)
    start = np.minimum(started_us + queue_us, end)
    first = np.clip(started_us + ttft_us, start, end)
    streamed = ttft_us >= 0
    return RequestSpans(
        instance,
        start,
        np.where(streamed, first, end),
        np.where(streamed, first, start),
        end,
        np.where(ended, prompt * np.array([t.prefill_s for t in times])[place], 0.0),
        np.where(ended, output * np.array([t.decode_s for t in times])[place], 0.0),
    )


def _ints(values: Sequence[Any]) -> Ints:
    return np.array(values, dtype=np.int64)


def _micros(values: Sequence[float]) -> Ints:
    return np.rint(np.array(values, dtype=np.float64) * US_PER_S).astype(np.int64)
