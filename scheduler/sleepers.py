"""The read side of services that sleep, for pages and REST."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery

from core.observations.fleet.sleep_given import OFF
from core.types import Loop, PutToSleep, WakeUp
from pools.models import Service
from scheduler.control import sleeping
from scheduler.control.sleep_states import KIND
from scheduler.models import ControllerState, Decision

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Sleep:
    """The state of a service that may sleep, and what it takes to wake it.

    `since`: when that began; None: before anybody looked. `why`: what the decision said; empty: nobody decided it.
    `short`: requests wait for it, and others have its GPUs. `wake_s`, `wake_j`: to its first iteration; None: unknown.
    `measured`: they are of its own starts, or wakings from vLLM's level 1 (`by_level`), not of published ones. `woken`:
    how often it woke in the last 24 h.
    """

    asleep: bool
    short: bool
    since: datetime | None
    why: str
    decision_id: int | None
    wake_s: float | None
    wake_j: float | None
    measured: bool
    by_level: bool
    woken: int


def of(service: Service, now: datetime) -> Sleep | None:
    """Returns None where the policy of the service has it never sleep. Makes six queries at most."""
    if service.policy_knobs().sleep == OFF:
        return None
    state, costs = sleeping.looked_at(service)
    made = Decision.objects.filter(service=service, kind=Loop.SCALE)
    wakes = made.filter(commands__contains=[{"type": WakeUp.__name__}])
    changes = wakes if not state.asleep else made.filter(commands__contains=[{"type": PutToSleep.__name__}])
    last = changes.order_by("-pk").only("summary").first()
    return Sleep(
        state.asleep,
        state.short,
        _moment(state.since_s),
        "" if last is None else last.summary,
        None if last is None else last.pk,
        None if costs is None else costs.wake_s,
        None if costs is None else costs.wake_j,
        costs is not None and costs.measured,
        state.by_level,
        wakes.filter(at__gt=now - DAY).count(),
    )


def asleep_since() -> dict[str, datetime]:
    """Returns since when those services sleep that do, by name. One query."""
    return {own.name: at for own in with_states(Service.objects.all()).filter(_ASLEEP) if (at := since(own))}


def with_states(services: QuerySet[Any]) -> QuerySet[Any]:
    """Adds to each service what `since` reads."""
    states = ControllerState.objects.filter(kind=KIND, service=OuterRef("pk"))
    found: QuerySet[Any] = services.annotate(sleep_state=Subquery(states.values("value")[:1]))
    return found


def since(service: Service) -> datetime | None:
    """Returns since when a service of `with_states` sleeps; None: it is awake."""
    state = service.sleep_state or {}  # type: ignore[attr-defined]
    asleep = state.get("asleep") and service.policy_knobs().sleep != OFF
    return _moment(state["since_s"]) if asleep else None


_ASLEEP = Q(sleep_state__asleep=True)


def _moment(at_s: float) -> datetime | None:
    return datetime.fromtimestamp(at_s, UTC) if at_s else None
