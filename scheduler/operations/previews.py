"""Says what a switch would change before it is carried out: power, carbon and cost, metered and predicted.

A preview carries the switch out in a transaction that is taken back. Where the loops would decide anew, it takes their
first turns, too. It holds the lock of plans meanwhile, so that what it shows is of one moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from core.types import Loop
from pools.models import Service
from scheduler import agents
from scheduler.control import active_operations, advising, service_policy, turn_context
from scheduler.control.apply import apply
from scheduler.control.fleet_prediction import FleetPrediction, clock_ranges, metered_w, predicted
from scheduler.control.loop_turns import decide
from scheduler.control.turn_context import TurnContext
from scheduler.models import ControllerState, ControlMode


@dataclass(frozen=True, slots=True)
class Preview:
    """It says what acts now and what would act then, both predicted at the present demand.

    `metered_w`: of the GPUs of the service's instances, by their meters. `notes`: what the switch does, in sentences,
    and what is not known.
    """

    metered_w: float | None
    now: FleetPrediction
    then: FleetPrediction
    notes: tuple[str, ...]

    @property
    def change_w(self) -> float | None:
        """The difference that the switch makes by the same model; None: it is not known."""
        if self.now.power_w is None or self.then.power_w is None:
            return None
        return self.then.power_w - self.now.power_w

    @property
    def change_share(self) -> float | None:
        """The difference as a share of what is predicted of now; None: it is not known, or nothing is drawn now."""
        return None if self.change_w is None or not self.now.power_w else self.change_w / self.now.power_w


def of(service: Service, switch: Callable[[], object], at: datetime | None = None) -> Preview:
    """Returns what a switch that concerns the service would change at `at`, or at this moment.

    Raises:
        ValidationError: The switch makes no sense; the words say why.
        PermissionDenied: The actor may not do it.
    """
    at = at or timezone.now()
    reporting = agents.reporting(agents.connect(), at)
    with transaction.atomic():
        apply.lock()
        service = Service.objects.get(pk=service.pk)
        present = turn_context.resolve(service, at, reporting, service.own_policy())
        now, metered = predicted(present, clock_ranges(present)), metered_w(present)
        ran = active_operations.acts(service)
        switch()
        service = Service.objects.get(pk=service.pk)
        after = turn_context.resolve(service, at, reporting, service.own_policy())
        acts = active_operations.acts(service)
        anew = acts and (not ran or after.signature != present.signature)
        if anew and reporting:
            after = _decided(after)
        then = predicted(after, clock_ranges(after))
        notes = tuple(_notes(service, present, after, anew=anew, reports=bool(reporting)))
        transaction.set_rollback(True)
    return Preview(metered, now, then, tuple(dict.fromkeys([*notes, *now.unknown, *then.unknown])))


def _decided(context: TurnContext) -> TurnContext:
    """Returns the context with the fleet that its loops would have after their first turns.

    Stores their states, which the transaction takes back.
    """
    for loop in (Loop.CARBON, Loop.SCALE, Loop.SHARD):
        if not active_operations.is_paused(context.service, loop):
            turn = decide(context, loop, 0)
            context, workers = advising.carried_out(context, loop, turn.result)
            for own in (turn, *([] if workers is None else [workers.decision])):
                # faster loops read what slower ones left
                ControllerState.objects.filter(pk=own.state.pk).update(value=own.result.state)
    return context


def _notes(service: Service, before: TurnContext, after: TurnContext, *, anew: bool, reports: bool) -> list[str]:
    found = []
    control_mode = active_operations.control_mode_of(service)
    if anew:
        found.append(f"All loops decide anew within seconds, under {after.policy.name}.")
    elif not control_mode.acts or not service_policy.is_in_force(service):
        words = "its plans wait for approval" if control_mode.mode == ControlMode.APPROVE else "it only advises"
        other = "" if service_policy.is_in_force(service) else f" {service.policy} is configured: {words}."
        found.append(f"Nothing that acts changes: {after.policy.name} stays in force.{other}")
    if anew and not reports:
        found.append("No node reports: nobody can tell which fleet the loops would choose.")
    if {clock.least_mhz for clock in clock_ranges(after).values()} == {None} and after.knobs.clock != "fixed":
        found.append("Clocks are at the top then.")
    return found
