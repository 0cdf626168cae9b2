"""Decision rows: what a loop decided, why, and what it expects of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db.models import Max, QuerySet

from core.types import Alternative, Command, Effects, Loop, Rationale
from pools.models import Pool, Service
from scheduler.control import shortages
from scheduler.json_values import to_json
from scheduler.models import Decision, Epoch

FAILED = "failed"
_MOST = 500  # characters of a summary
EXPECTED = ("power_w", "energy_j", "carbon_gco2e", "cost_usd", "ttft_s", "tpot_s")


def of_service(epoch: Epoch, effects: Effects, now: datetime, kind: Loop | None = None) -> Decision:
    """Stores one row for the whole service.

    `kind` where it is not the epoch's own: scale's follow-up of a carbon epoch.
    """
    found = shortages.of(epoch.service)
    short = "" if found is None else found.text(epoch.service.name)
    return _create(epoch, effects.rationale, effects.commands, now, kind, _labels(epoch.service), short=short)


def of_pools(epoch: Epoch, effects: Effects, now: datetime, kind: Loop | None = None) -> dict[int, int]:
    """Stores one row for each pool that changes, or one that says why none does. Returns pool -> decision."""
    pools = {(p.site.name, p.request_class.name): p for p in _pools(epoch.service)}
    labels = _labels(epoch.service)
    made: dict[int, int] = {}
    for item in effects.decisions:
        if not item.changed:
            continue
        pool = pools[item.pool.site, item.pool.request_class]
        commands = [command for command in effects.commands if getattr(command, "pool", None) == item.pool]
        made[pool.pk] = _create(epoch, item.rationale, commands, now, kind, labels, pool_id=pool.pk).pk
    if not made:
        of_service(epoch, effects, now, kind)
    return made


def failed(epoch: Epoch, now: datetime, error: str) -> Decision:
    """Stores the decision of a controller that failed: it commanded nothing."""
    return Decision.objects.create(
        kind=epoch.kind,
        at=now,
        service=epoch.service,
        epoch=epoch,
        reason=FAILED,
        summary=f"The {epoch.kind} epoch failed and the last plan stays: {error}"[:500],
    )


def latest_by_pool(service: Service) -> dict[int, int]:
    """Returns the decision that each pool's workers follow from."""
    rows = Decision.objects.filter(service=service, pool__isnull=False, kind__in=(Loop.SCALE, Loop.SHARD))
    rows = rows.exclude(epoch__status__in=(Epoch.Status.ADVISED, Epoch.Status.WAITING))
    return dict(rows.values_list("pool").annotate(newest=Max("id")).values_list("pool", "newest"))


def _pools(service: Service) -> QuerySet[Pool]:
    active = service.pools.filter(request_class__partition=service.partition_id)
    return active.select_related("site", "request_class")


def _create(
    epoch: Epoch,
    rationale: Rationale,
    commands: Iterable[Command],
    now: datetime,
    kind: Loop | None,
    labels: Mapping[str, str],
    pool_id: int | None = None,
    short: str = "",
) -> Decision:
    """Stores a row. `short`: what GPUs the service lacks, which has its place whatever else the summary says."""
    text = _advised_by(epoch) + _for_people(rationale.summary, labels)
    short = short[:_MOST]
    return Decision.objects.create(
        kind=(kind or Loop(epoch.kind)).value,
        at=now,
        service=epoch.service,
        epoch=epoch,
        pool_id=pool_id,
        reason=rationale.reason.value,
        summary=f"{text[: _MOST - len(short) - 1]} {short}" if short else text[:_MOST],
        inputs=to_json(rationale.inputs),
        alternatives=to_json(rationale.alternatives),
        commands=to_json(tuple(commands)),
        predicted=_expected(rationale.alternatives),
    )


def _expected(alternatives: Iterable[Alternative]) -> dict[str, Any]:
    """Returns the predicted figures of the chosen alternative, which are compared with the realised ones later."""
    chosen = next((row for row in alternatives if row.chosen), None)
    if chosen is None:
        return {}
    figures = {name: getattr(chosen, name) for name in EXPECTED}
    return {name: value for name, value in figures.items() if value is not None} | {"source": chosen.source.value}


def _advised_by(epoch: Epoch) -> str:
    return f"Advice of {epoch.service.policy}, not carried out: " if epoch.advisory else ""


def _labels(service: Service) -> dict[str, str]:
    """Returns the labels of the service's sites by their names."""
    sites = service.pools.values_list("site__name", "site__label").distinct()
    return {name: label or name for name, label in sites}


def _for_people(summary: str, labels: Mapping[str, str]) -> str:
    """Controllers know sites by their names; people read labels."""
    for name, label in labels.items():
        summary = summary.replace(name, label)
    return summary
