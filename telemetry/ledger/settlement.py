"""Settles windows of the ledger: whose joules they were, and what they emitted and cost. Restates what was revised.

A window is settled once the longest request that may have run in it has ended and its record is in. Serving joules go
to requests by token-time (`core.accounting.allocation`), and every amount is shared out in whole units, so that the
lines of a window add up to its energy entries exactly. Afterwards `restate` compares what each window was made from
with what is valid now; one that differs gets a new revision: its lines once more with the sign turned, and the new
ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Max, Min
from numpy.typing import NDArray

from core.units import US_PER_S
from pools import database_locks
from pools.database_locks import Lock
from pools.models import Site
from telemetry.ledger import rollup_carbon
from telemetry.ledger.served_requests import Served, served
from telemetry.ledger.settled_window import SettledWindow, windows
from telemetry.ledger.window_sources import WINDOW_S, Basis, basis
from telemetry.models import Settlement, StatementLine
from telemetry.storage import copying, synthetic, time_partitions

log = logging.getLogger(__name__)

CHUNK = timedelta(hours=1)  # windows worked out together: bounds memory
AMOUNTS = tuple(
    field.name for field in StatementLine._meta.get_fields() if field.get_internal_type() == "BigIntegerField"
)
CAUSES = ("energy", "host", "requests", "carbon", "pue", "tariff", "gpu_rates", "embodied")
LINE_SQL = f"""
INSERT INTO {StatementLine._meta.db_table}
    (settlement_id, entry, kind, pool_id, service, tenant_id, adapter, {", ".join(AMOUNTS)})
"""
REVERSE_SQL = f"""{LINE_SQL}
SELECT %s, 'reversal', kind, pool_id, service, tenant_id, adapter, {", ".join(f"-{name}" for name in AMOUNTS)}
FROM {StatementLine._meta.db_table} WHERE settlement_id = %s AND entry <> 'reversal'
"""


def settle(now: datetime) -> int:
    """Settles what is due and has never been, oldest first. Returns the number of windows.

    Where windows ahead of the clock are settled already, since it was set back, those of the last hour are settled
    again as the clock comes by.
    """
    due = _floor(now - timedelta(seconds=float(settings.GREENSERVE_SETTLE_AFTER_S)))
    done = 0
    for site in Site.objects.all():
        start = _next(site)
        if start is not None and start > due:
            done += _settle(site, due - CHUNK, due, first=False)
        while start is not None and start < due:
            end = min(start + CHUNK, due)
            done += _settle(site, start, end, first=True)
            start = end
    return done


def restate(now: datetime, since: datetime | None = None) -> int:
    """Settles again those windows whose sources changed; by default of as long as GREENSERVE_RESTATE_DAYS back.

    What was made up stays as it is: nobody has the requests that it would be shared out among. Returns the number of
    windows that were restated.
    """
    since = since or now - timedelta(days=settings.GREENSERVE_RESTATE_DAYS)
    made_up = synthetic.newest()
    since = _floor(since if made_up is None else max(since, made_up.end_at))
    done = 0
    for site in Site.objects.all():
        settled = Settlement.objects.filter(site=site, start_at__gte=since)
        start, last = settled.aggregate(first=Min("start_at"), last=Max("end_at")).values()
        while start is not None and start < last:
            end = min(start + CHUNK, last)
            done += _settle(site, start, end, first=False)
            start = end
    return done


def settle_sums(site: Site, start: datetime, end: datetime, requests: Served) -> None:
    """Settles windows of which there are sums of requests, and no records."""
    _settle(site, start, end, first=True, requests=requests)


def version() -> int:
    """The ledger's version: all there is now. 0: nothing was settled yet."""
    return Settlement.objects.order_by("-id").values_list("id", flat=True).first() or 0


def _settle(site: Site, start: datetime, end: datetime, *, first: bool, requests: Served | None = None) -> int:
    """Windows of [start, end): those never settled, or those settled from what is no longer valid.

    `requests`: None: those on record.
    """
    with transaction.atomic():
        # One after the other: ids come in the order of commits, so that a version is all that is at most its id.
        database_locks.take(Lock.SETTLEMENT)
        latest = _latest(site, start, end)
        found = basis(site, start, end, {at: row.sources for at, row in latest.items()})
        causes: dict[datetime, tuple[str, ...]] = {}
        for at in found:
            if at in latest:
                if not first and (changed := _changed(latest[at].sources, found[at])):
                    causes[at] = changed
            elif (
                found[at].energy_uj or found[at].requests or found[at].sources.get("host")
            ):  # also one that was empty when its turn came
                causes[at] = ("first",)
        if not causes:
            return 0
        if requests is None:
            recorded = served(site, min(causes), max(causes) + timedelta(seconds=WINDOW_S))
            made = windows(site, sorted(causes), found, recorded)
            rollup_carbon.follow(site, {key: value for window in made for key, value in window.emitted.items()})
        else:
            made = windows(site, sorted(causes), found, requests)
        _write(site, made, found, latest, causes)
        if not first:
            log.info("restated %d windows of %s from %s on", len(made), site, made[0].start)
        return len(made)


def _changed(before: Mapping[str, Any], now: Basis) -> tuple[str, ...]:
    return tuple(cause for cause in CAUSES if before.get(cause) != now.sources.get(cause))


def _write(
    site: Site,
    made: Sequence[SettledWindow],
    found: Mapping[datetime, Basis],
    latest: Mapping[datetime, Settlement],
    causes: Mapping[datetime, Sequence[str]],
) -> None:
    numbers = dict(zip((window.start for window in made), _next_ids(len(made)), strict=True))
    before = {at: latest[at] for at in numbers if at in latest}
    shared = {at: at not in before or bool({"energy", "requests"} & set(causes[at])) for at in numbers}
    Settlement.objects.bulk_create(
        Settlement(
            pk=numbers[window.start],
            site=site,
            start_at=window.start,
            end_at=window.start + timedelta(seconds=WINDOW_S),
            revision=before[window.start].revision + 1 if window.start in before else 0,
            cause=", ".join(causes[window.start]),
            sources=found[window.start].sources,
            currency=site.currency,
            energy_uj=sum(line.amounts["energy_uj"] for line in window.lines),
            unattributed_uj=sum(line.amounts["energy_uj"] for line in window.lines if line.kind == "unattributed"),
            shares_id=numbers[window.start] if shared[window.start] else before[window.start].shares_id,
        )
        for window in made
    )
    with connection.cursor() as cursor:
        for at, row in before.items():
            cursor.execute(REVERSE_SQL, [numbers[at], row.pk])
    _write_lines([(numbers[window.start], window.start in before, window) for window in made])
    _write_shares([(numbers[window.start], window) for window in made if shared[window.start]])


def _write_lines(made: Sequence[tuple[int, bool, SettledWindow]]) -> None:
    lines = [(number, again, line) for number, again, window in made for line in window.lines]
    entries = StatementLine.LineEntry.ORIGINAL, StatementLine.LineEntry.RESTATED
    copying.write(
        StatementLine._meta.db_table,
        [
            copying.Column("settlement_id", copying.BIGINT, np.array([number for number, _, _ in lines])),
            copying.words("entry", [entries[again].value for _, again, _ in lines]),
            copying.words("kind", [line.kind for _, _, line in lines]),
            _numbers("pool_id", [line.pool_id for _, _, line in lines]),
            copying.words("service", [line.service for _, _, line in lines]),
            _numbers("tenant_id", [line.tenant_id for _, _, line in lines]),
            copying.words("adapter", [line.adapter for _, _, line in lines]),
            *(
                copying.Column(name, copying.BIGINT, np.array([line.amounts[name] for _, _, line in lines]))
                for name in AMOUNTS
            ),
        ],
    )


def _numbers(name: str, values: Sequence[int | None]) -> copying.Column:
    return copying.floats(name, values, copying.BIGINT)


def _write_shares(made: Sequence[tuple[int, SettledWindow]]) -> None:
    made = [(number, window) for number, window in made if window.shares.request_id]
    if not made:
        return
    time_partitions.ensure({window.start.date() for _, window in made}, ("telemetry_requestshare",))
    shares = [window.shares for _, window in made]
    counts = [len(each.request_id) for each in shares]
    start_us = [round(window.start.timestamp() * US_PER_S) for _, window in made]

    def joined(name: str) -> NDArray[np.int64]:
        return np.concatenate([getattr(each, name) for each in shares])

    copying.write(
        "telemetry_requestshare",
        [
            copying.moments("start_at", np.repeat(np.array(start_us, dtype=np.int64), counts)),
            copying.Column("settlement_id", copying.BIGINT, np.repeat([number for number, _ in made], counts)),
            copying.moments("started_at", joined("started_us")),
            copying.text("request_id", [request_id for each in shares for request_id in each.request_id]),
            copying.Column("prefill_uj", copying.BIGINT, joined("prefill_uj")),
            copying.Column("decode_uj", copying.BIGINT, joined("decode_uj")),
            copying.Column("gpu_us", copying.BIGINT, joined("gpu_us")),
        ],
    )


def _next_ids(count: int) -> list[int]:
    sql = "SELECT nextval(pg_get_serial_sequence('telemetry_settlement', 'id')) FROM generate_series(1, %s)"
    with connection.cursor() as cursor:
        cursor.execute(sql, [count])
        return sorted(int(number) for (number,) in cursor.fetchall())


def _latest(site: Site, start: datetime, end: datetime) -> dict[datetime, Settlement]:
    rows = Settlement.objects.filter(site=site, start_at__gte=start, start_at__lt=end).order_by("revision")
    return {row.start_at: row for row in rows}


def _next(site: Site) -> datetime | None:
    """Returns where settling goes on: after the last window settled, or at the site's first energy entry."""
    last = Settlement.objects.filter(site=site).order_by("-start_at").values_list("end_at", flat=True).first()
    if last is not None:
        return last
    sql = "SELECT min(start_at) FROM telemetry_energyrollup WHERE step_s = 60 AND site_id = %s"
    with connection.cursor() as cursor:
        cursor.execute(sql, [site.pk])
        (first,) = cursor.fetchone()
    return None if first is None else _floor(first)


def _floor(at: datetime) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // WINDOW_S * WINDOW_S, UTC)
