"""Keeps `SloMinute` up with the request records: counted again for as long as late records may come in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Max

from pools.models import Slo
from telemetry.models import SloMinute

from .burn_rates import DAY_S, MinuteCount

LONGEST = timedelta(seconds=900)  # no request runs longer: bounds the partitions that are opened
EACH_TIME = timedelta(minutes=20)  # covers the journal's and the ingester's usual delays
NOW_AND_THEN = timedelta(hours=6)  # and an ingester that was away
NOW_AND_THEN_MINUTES = 10
KEPT = timedelta(seconds=3 * DAY_S)

SQL = """
INSERT INTO telemetry_slominute AS m (service, kind, start_at, judged, within)
SELECT r.service, k.kind, r.minute, count(*),
       count(*) FILTER (WHERE r.status = 'ok' AND NOT k.kind = ANY (string_to_array(r.slo_failed, ',')))
FROM (
    SELECT *, date_trunc('minute', started_at + coalesce(e2e_s, 0) * interval '1 second') AS minute
    FROM telemetry_requestrecord WHERE started_at >= %(opened)s AND started_at <= %(now)s AND slo_met IS NOT NULL
) r CROSS JOIN LATERAL (VALUES ('ttft', r.ttft_s), ('tpot', r.tpot_s), ('e2e', r.e2e_s)) AS k (kind, value)
WHERE r.minute >= %(since)s AND (r.status <> 'ok' OR k.value IS NOT NULL)
GROUP BY 1, 2, 3
ON CONFLICT (start_at, service, kind) DO UPDATE SET judged = excluded.judged, within = excluded.within
WHERE (m.judged, m.within) IS DISTINCT FROM (excluded.judged, excluded.within)
"""


def refresh(now: datetime) -> int:
    """Counts anew what may have changed; returns the rows that did. Nobody having looked for a while is made up for."""
    newest = SloMinute.objects.aggregate(newest=Max("start_at"))["newest"]
    back = NOW_AND_THEN if newest is None or now.minute % NOW_AND_THEN_MINUTES == 0 else EACH_TIME
    since = now - back if newest is None else min(newest, now - back)
    since = max(since, now - KEPT).replace(second=0, microsecond=0)
    with connection.cursor() as cursor:
        cursor.execute(SQL, {"since": since, "opened": since - LONGEST, "now": now})
        return int(cursor.rowcount)


def minutes(now: datetime) -> Mapping[tuple[str, str], list[MinuteCount]]:
    """Returns the last three days' counts by (service, kind). One query."""
    found: dict[tuple[str, str], list[MinuteCount]] = defaultdict(list)
    rows = SloMinute.objects.filter(start_at__gte=now - KEPT, start_at__lte=now).order_by("start_at")
    for service, kind, start_at, judged, within in rows.values_list("service", "kind", "start_at", "judged", "within"):
        found[service, kind].append(MinuteCount(start_at.timestamp(), judged, within))
    return found


def targets() -> Mapping[tuple[str, str], float]:
    """Returns the share of requests that is to be within each objective, by (service, kind). One query."""
    rows = Slo.objects.values_list("service__name", "kind", "percentile")
    return {(service, kind): percentile / 100.0 for service, kind, percentile in rows}
