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

from core.units import US_PER_S
from pools.models import Site
from telemetry.ledger import rollup_carbon
from telemetry.ledger.settled_window import SettledWindow, WindowLine, windows
from telemetry.ledger.window_sources import WINDOW_S, Basis, basis
from telemetry.models import Settlement, StatementLine
from telemetry.storage import copying, time_partitions

log = logging.getLogger(__name__)

CHUNK = timedelta(hours=1)  # windows worked out together: bounds memory
AMOUNTS = tuple(
    field.name for field in StatementLine._meta.get_fields() if field.get_internal_type() == "BigIntegerField"
)
CAUSES = ("energy", "requests", "carbon", "pue", "tariff", "gpu_rates", "embodied")
LINE_SQL = f"""
INSERT INTO {StatementLine._meta.db_table}
    (settlement_id, entry, kind, pool_id, service, tenant_id, {", ".join(AMOUNTS)})
"""
REVERSE_SQL = f"""{LINE_SQL}
SELECT %s, 'reversal', kind, pool_id, service, tenant_id, {", ".join(f"-{name}" for name in AMOUNTS)}
FROM {StatementLine._meta.db_table} WHERE settlement_id = %s AND entry <> 'reversal'
"""


def settle(now: datetime) -> int:
    """Settles what is due and has never been, oldest first. Returns the number of windows."""
    due = _floor(now - timedelta(seconds=float(settings.GREENSERVE_SETTLE_AFTER_S)))
    done = 0
    for site in Site.objects.all():
        start = _next(site)
        while start is not None and start < due:
            end = min(start + CHUNK, due)
            done += _settle(site, start, end, first=True)
            start = end
    return done


def restate(now: datetime, since: datetime | None = None) -> int:
    """Settles again those windows whose sources changed; by default of as long as GREENSERVE_RESTATE_DAYS back.

    Returns the number of windows that were restated.
    """
    since = _floor(since or now - timedelta(days=settings.GREENSERVE_RESTATE_DAYS))
    done = 0
    for site in Site.objects.all():
        start = since
        last = Settlement.objects.filter(site=site).order_by("-start_at").values_list("end_at", flat=True).first()
        while last is not None and start < last:
            end = min(start + CHUNK, last)
            done += _settle(site, start, end, first=False)
            start = end
    return done


def version() -> int:
    """The ledger's version: all there is now. 0: nothing was settled yet."""
    return Settlement.objects.order_by("-id").values_list("id", flat=True).first() or 0


def _settle(site: Site, start: datetime, end: datetime, *, first: bool) -> int:
    """Windows of [start, end): those never settled, or those settled from what is no longer valid."""
    with transaction.atomic():
        # One after the other: ids come in the order of commits, so that a version is all that is at most its id.
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('telemetry.settlement'))")
        latest = _latest(site, start, end)
        found = basis(site, start, end, {at: row.sources for at, row in latest.items()})
        causes: dict[datetime, tuple[str, ...]] = {}
        for at in found:
            if at in latest:
                if not first and (changed := _changed(latest[at].sources, found[at])):
                    causes[at] = changed
            elif found[at].energy_uj or found[at].requests:  # also one that was empty when its turn came
                causes[at] = ("first",)
        if not causes:
            return 0
        made = windows(site, sorted(causes), found)
        time_partitions.ensure({at.date() for at in causes}, ("telemetry_requestshare",))
        for window in made:
            _write(site, window, found[window.start], latest.get(window.start), causes[window.start])
        rollup_carbon.follow(site, {key: value for window in made for key, value in window.emitted.items()})
        if not first:
            log.info("restated %d windows of %s from %s on", len(made), site, made[0].start)
        return len(made)


def _changed(before: Mapping[str, Any], now: Basis) -> tuple[str, ...]:
    return tuple(cause for cause in CAUSES if before.get(cause) != now.sources[cause])


def _write(
    site: Site, window: SettledWindow, made_from: Basis, before: Settlement | None, causes: Sequence[str]
) -> None:
    number = _next_id()
    shared = before is None or bool({"energy", "requests"} & set(causes))
    Settlement.objects.create(
        pk=number,
        site=site,
        start_at=window.start,
        end_at=window.start + timedelta(seconds=WINDOW_S),
        revision=0 if before is None else before.revision + 1,
        cause=", ".join(causes),
        sources=made_from.sources,
        currency=site.currency,
        energy_uj=sum(line.amounts["energy_uj"] for line in window.lines),
        unattributed_uj=sum(line.amounts["energy_uj"] for line in window.lines if line.kind == "unattributed"),
        shares_id=number if before is None or shared else before.shares_id,
    )
    if before is not None:
        with connection.cursor() as cursor:
            cursor.execute(REVERSE_SQL, [number, before.pk])
    entry = StatementLine.LineEntry.ORIGINAL if before is None else StatementLine.LineEntry.RESTATED
    StatementLine.objects.bulk_create([_row(number, entry, line) for line in window.lines], batch_size=2_000)
    if shared:
        _write_shares(number, window)


def _row(number: int, entry: str, line: WindowLine) -> StatementLine:
    return StatementLine(
        settlement_id=number,
        entry=entry,
        kind=line.kind,
        pool_id=line.pool_id,
        service=line.service,
        tenant_id=line.tenant_id,
        **line.amounts,
    )


def _write_shares(number: int, window: SettledWindow) -> None:
    shares = window.shares
    count, start_us = len(shares.request_id), round(window.start.timestamp() * US_PER_S)
    copying.write(
        "telemetry_requestshare",
        [
            copying.moments("start_at", np.full(count, start_us)),
            copying.Column("settlement_id", copying.BIGINT, np.full(count, number)),
            copying.moments("started_at", shares.started_us),
            copying.text("request_id", shares.request_id),
            copying.Column("prefill_uj", copying.BIGINT, shares.prefill_uj),
            copying.Column("decode_uj", copying.BIGINT, shares.decode_uj),
            copying.Column("gpu_us", copying.BIGINT, shares.gpu_us),
        ],
    )


def _next_id() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval(pg_get_serial_sequence('telemetry_settlement', 'id'))")
        return int(cursor.fetchone()[0])


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
