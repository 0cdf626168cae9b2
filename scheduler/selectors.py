"""The read side of the scheduler: decisions and epochs, for pages and charts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Min, OuterRef, QuerySet, Subquery

from core.types import Loop, Reason
from pools.models import Instance, Service
from scheduler.control import loop_times
from scheduler.models import ControllerState, Decision, DecisionKind, Epoch, LoopPause, SlowLoop

MAX_TICKS = 150


@dataclass(frozen=True, slots=True)
class LoopRun:
    """The newest epoch of one loop of one service; None: it never ran, or is a clock loop, which has no epochs.

    `no_choice`: the `policy` in force leaves it none. `looked_at`: when it last had a turn, also one in which there
    was nothing to decide, which leaves no epoch. `pause`: the newest one, also if it has ended. `only_advises`: no loop
    of the service has acted yet, and none is to.
    """

    kind: str
    service: str
    epoch: Epoch | None
    period_s: float
    decision_id: int | None = None
    no_choice: bool = False
    looked_at: datetime | None = None
    policy: str = ""
    pause: LoopPause | None = None
    only_advises: bool = False


def decisions(
    kind: str | None = None, text: str = "", epoch_id: int | None = None, pool_id: int | None = None
) -> QuerySet[Decision]:
    """Returns decisions, newest first, with what a list shows: of one kind, epoch or pool, with `text` in the summary
    if given.

    The heavy JSON columns stay in the database.
    """
    found = Decision.objects.select_related("service", "pool__site", "pool__request_class").defer(
        "inputs", "alternatives", "commands", "predicted", "realised"
    )
    if kind:
        found = found.filter(kind=kind)
    if epoch_id is not None:
        found = found.filter(epoch_id=epoch_id)
    if pool_id is not None:
        found = found.filter(pool_id=pool_id)
    return found.filter(summary__icontains=text) if text else found


def recent_decisions(per_loop: int, rows: QuerySet[Decision] | None = None) -> list[Decision]:
    """The newest few of each loop, newest first: else the clock loop's would crowd out all others. One query a loop.

    `rows`: those of `decisions` that are looked at, where it is not all of them.
    """
    rows = decisions() if rows is None else rows
    found = [decision for kind in DecisionKind.values for decision in rows.filter(kind=kind)[:per_loop]]
    return sorted(found, key=lambda d: (d.at, d.pk), reverse=True)


def decision(decision_id: int) -> Decision | None:
    """Returns one decision with its epoch and pool."""
    return (
        Decision.objects.select_related("service", "epoch__service", "pool__site", "pool__request_class")
        .filter(pk=decision_id)
        .first()
    )


def ticks(start: datetime, end: datetime, rows: QuerySet[Decision] | None = None) -> list[Decision]:
    """Returns decisions of the slow loops that changed or refused something: the newest ones, oldest first.

    The clock loop decides each second on each instance, and a hold changes nothing: both would hide the rest.
    `rows`: those of `decisions` that are looked at, where it is not all of them.
    """
    found = (
        (decisions() if rows is None else rows)
        .filter(at__gte=start, at__lte=end)
        .exclude(kind=DecisionKind.CLOCK)
        .exclude(reason__in=[Reason.NO_CHANGE, Reason.NOT_WORTH_IT])
        .exclude(epoch__advisory=True)
    )
    return list(found[:MAX_TICKS])[::-1]


def loop_runs() -> list[LoopRun]:
    """Returns every loop of every service, with the newest epoch of the slow ones. A policy may set periods of its own.

    Takes three queries.
    """
    newest = {
        f"{kind}_epoch": Subquery(
            Epoch.objects.filter(service=OuterRef("pk"), kind=kind, advisory=False)
            .order_by("-due_at", "-pk")
            .values("pk")[:1]
        )
        for kind in SlowLoop.values
    }
    looked = {
        f"{kind}_looked_at": Subquery(
            ControllerState.objects.filter(service=OuterRef("pk"), kind=kind).values("updated_at")[:1]
        )
        for kind in SlowLoop.values
    }
    services = list(Service.objects.select_related("mode").annotate(**newest, **looked))
    ids = [getattr(service, name) for service in services for name in newest]
    epochs = Epoch.objects.annotate(decision_id=Min("decisions__id")).in_bulk([pk for pk in ids if pk is not None])
    pauses = _newest_pauses()
    found = []
    for service in services:
        policy, control_mode = service.own_policy(), getattr(service, "mode", None)
        knobs = policy.knobs
        times = loop_times.times(knobs)
        for loop in Loop:
            slow = loop.value in SlowLoop.values
            epoch = epochs.get(getattr(service, f"{loop.value}_epoch")) if slow else None
            run = LoopRun(
                kind=loop.value,
                service=service.name,
                epoch=epoch,
                period_s=times.of(loop),
                decision_id=epoch.decision_id if epoch else None,
                no_choice=knobs.has_no_choice(loop),
                looked_at=getattr(service, f"{loop.value}_looked_at") if slow else None,
                policy=policy.name,
                pause=pauses.get((service.pk, loop.value)),
                only_advises=slow and bool(service.acting_policy) and not (control_mode and control_mode.decides),
            )
            found.append(run)
    return found


def _newest_pauses() -> dict[tuple[int, str], LoopPause]:
    """Returns the newest pause of each loop that was ever paused, by service and loop, with who made it."""
    rows = LoopPause.objects.order_by("service_id", "loop", "-created_at", "-pk").distinct("service_id", "loop")
    return {(row.service_id, row.loop): row for row in rows.select_related("created_by")}


def newest_clock_decision_at() -> datetime | None:
    """Returns when the clock loop last reported a decision."""
    return Decision.objects.filter(kind=DecisionKind.CLOCK).order_by("-at").values_list("at", flat=True).first()


def ready_count(services: Collection[str]) -> int:
    """Counts the ready instances of these services."""
    return Instance.objects.filter(state=Instance.State.READY, pool__service__name__in=services).count()


def instance_counts() -> dict[str, int]:
    """Counts live instances by state."""
    rows = Instance.objects.exclude(state=Instance.State.STOPPED).values_list("state").annotate(Count("pk"))
    return dict(rows.order_by())
