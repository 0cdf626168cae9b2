"""Hosts in the ledger: every joule of every domain's counter, entered once, in whole microjoules.

As `posting` does it for GPUs: watermarks on borders of intervals, moved by compare-and-swap in the transaction that
inserts. Whose the joules are is said when a window is settled.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db import connection, transaction

from core.accounting.counters import UNATTRIBUTED, MeterTrace, Slices
from core.accounting.grouping import Groups
from core.ports import HOST_METHODS
from core.units import US_PER_S
from telemetry.ledger.counter_traces import MOST_J
from telemetry.ledger.watermarks import (
    CATCH_UP_S,
    INTERVAL_US,
    Advance,
    Watermark,
    advance,
    floor,
    micros,
    moment,
    set_back,
)
from telemetry.models import HostEntry, HostMark
from telemetry.storage import copying

log = logging.getLogger(__name__)

SETTLE_S = 10.0  # samples younger than this may still be on their way: a controller's power is read each 5 s
RECENT_S = 60.0
MAX_GAP_S = 30.0
MOST_W = 20_000.0  # no domain of a node draws more

_COLUMNS = f"""
m.id, s.at, round(s.energy_j * 1e6)::bigint AS energy_uj,
array_position(ARRAY[{", ".join(f"'{method}'" for method in HOST_METHODS)}], s.method::text)::bigint - 1 AS method
FROM telemetry_hostsample s JOIN telemetry_hostmark m ON m.node_id = s.node_id AND m.domain = s.domain
WHERE s.at > %(since)s AND s.at <= %(until)s AND s.energy_j BETWEEN 0 AND {MOST_J}
  AND (%(marks)s::bigint[] IS NULL OR m.id = ANY(%(marks)s))
"""
READINGS_SQL = f"SELECT {_COLUMNS}"
FIRST_SQL = f"SELECT DISTINCT ON (m.id) {_COLUMNS} ORDER BY m.id, s.at"
_KINDS = {
    "mark": copying.BIGINT,
    "at_us": copying.MOMENT,
    "energy_uj": copying.BIGINT,
    "method": copying.BIGINT,
}
OPEN_SQL = f"""
INSERT INTO telemetry_hostmark (node_id, domain, at, energy_uj, opened_at, opened_energy_uj)
SELECT DISTINCT ON (s.node_id, s.domain) s.node_id, s.domain, s.at, round(s.energy_j * 1e6)::bigint, s.at,
       round(s.energy_j * 1e6)::bigint
FROM telemetry_hostsample s JOIN pools_node n ON n.id = s.node_id
WHERE s.energy_j BETWEEN 0 AND {MOST_J} AND s.at <= %(until)s AND (s.node_id, s.domain) IN (
    SELECT r.node_id, r.domain FROM (
        SELECT DISTINCT node_id, domain FROM telemetry_hostsample
        WHERE at > %(since)s AND at <= %(until)s AND energy_j IS NOT NULL
    ) r LEFT JOIN telemetry_hostmark m USING (node_id, domain) WHERE m.id IS NULL)
ORDER BY s.node_id, s.domain, s.at
ON CONFLICT DO NOTHING
"""


# Compare-and-swap of all at once. A reset lowers the opening by what the counter forgot: it balances.
MOVE_SQL = """
UPDATE telemetry_hostmark m
SET at = v.at, energy_uj = v.energy_uj, opened_energy_uj = m.opened_energy_uj - v.forgotten_uj
FROM unnest(%s::bigint[], %s::timestamptz[], %s::bigint[], %s::timestamptz[], %s::bigint[], %s::bigint[])
     AS v (id, was_at, was_uj, at, energy_uj, forgotten_uj)
WHERE m.id = v.id AND m.at = v.was_at AND m.energy_uj = v.was_uj RETURNING m.id
"""


@dataclass(frozen=True, slots=True)
class _Trace:
    readings: MeterTrace
    method: str  # of the last one


@dataclass(frozen=True, slots=True)
class _Posting:
    mark: HostMark
    method: str
    advance: Advance


def post(now: datetime) -> int:
    """Enters what is complete and returns the number of entries made. Domains that are silent wait until they speak."""
    set_back(HostMark.objects.all(), "hosts", now)
    closed_us = floor(micros(now) - round(SETTLE_S * US_PER_S))
    since = now - timedelta(seconds=RECENT_S)
    with connection.cursor() as cursor:
        cursor.execute(OPEN_SQL, {"since": since, "until": now})
    recent = _read(READINGS_SQL, since, now, None)
    if not recent:
        return 0
    postings = []
    for mark in HostMark.objects.filter(pk__in=recent).order_by("pk"):
        trace = recent[mark.pk]
        if micros(mark.at) < trace.readings.at_us[0]:
            trace = _lagging(mark, now, trace.method)
        watermark = Watermark(f"{mark.domain} of node {mark.node_id}", micros(mark.at), mark.energy_uj)
        found = advance(watermark, trace.readings, closed_us, MOST_W, MAX_GAP_S)
        if found is not None:
            postings.append(_Posting(mark, trace.method, found))
    return _enter(postings)


def _lagging(mark: HostMark, now: datetime, method: str) -> _Trace:
    """Returns the readings of the hour after a watermark, with those before it and the first one after the hour."""
    end = min(now, mark.at + timedelta(seconds=CATCH_UP_S) + timedelta(microseconds=INTERVAL_US))
    found = _read(READINGS_SQL, mark.at - timedelta(seconds=RECENT_S), end, [mark.pk]).get(mark.pk)
    after = _read(FIRST_SQL, end, now, [mark.pk]).get(mark.pk)
    parts = [part for part in (found, after) if part is not None]
    readings = parts[0].readings if len(parts) == 1 else parts[0].readings.joined(parts[1].readings)
    return _Trace(readings, found.method if found else method)


def _read(sql: str, since: datetime, until: datetime, marks: Sequence[int] | None) -> Mapping[int, _Trace]:
    """Returns the readings of (since, until] by mark; of several at one moment the first that was stored."""
    params: dict[str, Any] = {"since": since, "until": until, "marks": None if marks is None else list(marks)}
    found = copying.read(sql, params, _KINDS)
    single = Groups.by(found["mark"], found["at_us"])
    mark, at_us, energy_uj, method = (single.key(found[name]) for name in _KINDS)
    borders = np.flatnonzero(np.diff(mark)) + 1
    traces = {}
    for a, b in zip([0, *borders.tolist()], [*borders.tolist(), len(mark)], strict=True):
        if b > a:
            none = np.zeros(b - a, dtype=np.int64)
            readings = MeterTrace(at_us[a:b], energy_uj[a:b], none, none, none - 1)
            traces[int(mark[a])] = _Trace(readings, HOST_METHODS[int(method[b - 1])])
    return traces


def _enter(postings: Sequence[_Posting]) -> int:
    if not postings:
        return 0
    with transaction.atomic():
        moved = _move(postings)
        rows = [_by_interval(posting.advance.slices) for posting in moved]
        counts = [len(row[0]) for row in rows]
        if not sum(counts):
            return 0
        start_us, end_us, energy_uj = (np.concatenate(column) for column in zip(*rows, strict=True))
        sites = {
            mark.pk: mark.node.cluster.site_id
            for mark in HostMark.objects.filter(pk__in=[posting.mark.pk for posting in moved]).select_related(
                "node__cluster"
            )
        }
        which = np.repeat(np.arange(len(moved)), counts).tolist()
        copying.write(
            HostEntry._meta.db_table,
            [
                copying.Column("node_id", copying.BIGINT, np.array([moved[at].mark.node_id for at in which])),
                copying.Column("site_id", copying.BIGINT, np.array([sites[moved[at].mark.pk] for at in which])),
                copying.words("domain", [moved[at].mark.domain for at in which]),
                copying.words("method", [moved[at].method for at in which]),
                copying.moments("start_at", start_us),
                copying.moments("end_at", end_us),
                copying.Column("energy_uj", copying.BIGINT, energy_uj),
                copying.Column("passing", copying.SMALLINT, np.array([moved[at].mark.passing for at in which])),
            ],
        )
        return len(which)


def _by_interval(slices: Slices) -> tuple[Any, Any, Any]:
    """Returns starts, ends and energy by interval.

    What a count that started again from 0 passed over carries no joule, and is left out: nothing was metered there.
    """
    one = Groups.by(slices.interval)
    energy_uj = one.sum(slices.energy_uj)
    kept = (energy_uj > 0) | (one.min(slices.kind) != UNATTRIBUTED)
    return one.min(slices.start_us)[kept], one.max(slices.end_us)[kept], energy_uj[kept]


def _move(postings: Sequence[_Posting]) -> list[_Posting]:
    """Moves the watermarks, each if nobody else has, and returns the postings whose watermark moved."""
    ids = [posting.mark.pk for posting in postings]
    list(HostMark.objects.select_for_update().filter(pk__in=ids).order_by("pk"))  # in one order: no deadlock
    rows = [
        (
            *(posting.mark.pk, posting.mark.at, posting.mark.energy_uj),
            *(moment(posting.advance.border_us), posting.advance.counter_uj, posting.advance.forgotten_uj),
        )
        for posting in postings
    ]
    with connection.cursor() as cursor:
        cursor.execute(MOVE_SQL, [list(column) for column in zip(*rows, strict=True)])
        moved = {pk for (pk,) in cursor.fetchall()}
    if len(moved) < len(postings):
        log.info("%d domains of hosts were posted by another process", len(postings) - len(moved))
    return [posting for posting in postings if posting.mark.pk in moved]
