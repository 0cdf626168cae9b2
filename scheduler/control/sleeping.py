"""Puts services without traffic to sleep, and wakes those that requests wait for. Looks each second, out of epochs.

What comes and waits is what gateways say of their open requests: they do so at once when the first request for a
service that sleeps arrives. Each change is an epoch of the scale loop out of turn, since it decides how many instances
there are: with its decision, its placement and its pause.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import redis
from django.db import IntegrityError, transaction
from django.db.models import F, Max
from django.utils import timezone

from core.controllers.fleet import sleep
from core.controllers.fleet.sleep import Place, SleepConfig, Sleeper, SleepObservation
from core.engine.engine_params import UnknownConfiguration
from core.engine.overhead_table import start_key, wake_key
from core.observations import asking
from core.observations.demand.class_arrivals import STRETCH_S
from core.observations.fleet import sleep_given
from core.policy.presets import Policy
from core.types import Effects, Loop, Mode, PutToSleep, WakeUp
from pools import engine_knowledge
from pools.models import Instance, Pool, Service
from pools.open_requests import gateways_known, waiting_since
from scheduler import agents
from scheduler.control import (
    active_operations,
    decision_rows,
    epochs,
    host_memory,
    recordings,
    sleep_states,
    turn_context,
)
from scheduler.control.apply import apply, publish
from scheduler.control.sleep_states import KIND, SleepState
from scheduler.control.snapshot import measured_overheads
from scheduler.control.snapshot.free_gpus import free_gpus
from scheduler.json_values import workers_from_json
from scheduler.models import ControllerState, ServiceMode
from telemetry.models import DemandSketch

log = logging.getLogger(__name__)

_STARTS = (Instance.State.PENDING, Instance.State.STARTING)
PLANS_ANEW_S = 10.0  # at most so often, of a service without a plan for any instance


def look(now: datetime) -> None:
    """Takes one turn for all services that may sleep; cheap where none may.

    All of them are read together; only one that changes is read again, with all that its loops go by.
    """
    client = agents.connect()
    found = _read(client, now)
    if not found:
        return
    sleepers = [sleeper for own in found if (sleeper := own.sleeper(now.timestamp())) is not None]
    reporting = agents.reporting(client, now)
    free = _free(reporting)
    observation = SleepObservation(now.timestamp(), tuple(sleepers), free)
    with asking.noting() as notes:
        _, effects = asking.step(sleep.step, None, observation, SleepConfig())
    wishes = {command.service: isinstance(command, PutToSleep) for command in _changes(effects)}
    waiting = [own.service for own in found if own.waits_for_gpus]
    touched = epochs.settle(client, now, waiting) if waiting else frozenset()
    for own in sorted(found, key=lambda own: not wishes.get(own.service.name, False)):  # who makes room goes first
        asleep = wishes.get(own.service.name)
        if asleep is None:
            own.note(now.timestamp())
            if free and own.lacks_plan(now):
                epochs.run_now(own.service, now)
        else:
            touched |= _change(own, asleep, effects, notes, reporting, now)
    if touched:
        publish.publish(client, timezone.now())
        publish.nudge(touched)


def _changes(effects: Effects) -> Iterable[PutToSleep | WakeUp]:
    return (command for command in effects.commands if isinstance(command, (PutToSleep, WakeUp)))


def _free(reporting: Iterable[str]) -> Mapping[Place, int]:
    """Counts the GPUs of nodes that report, and that no instance has."""
    found: Counter[Place] = Counter()
    for own in free_gpus(list(reporting)):
        found[own.site, own.gpu] += own.count
    return found


@dataclass(slots=True)
class _Sleeping:
    """A service that may sleep, as it is now.

    `planned_at`: when its plan was last looked at. `waiting`: when each of its open requests came, in Unix seconds;
    None: no gateway is heard. `came_s`: until when requests came, by their records. `coming`: the states of its engines
    that are to run.
    """

    service: Service
    policy: Policy
    planned_at: datetime
    row: ControllerState
    state: SleepState
    waiting: Sequence[float] | None
    workers: Counter[tuple[str, Mode]]
    came_s: float
    coming: frozenset[str]

    @property
    def starts(self) -> bool:
        return not self.coming.isdisjoint(_STARTS)

    @property
    def waits_for_gpus(self) -> bool:
        """Says whether requests wait for it while others give up its GPUs."""
        return not self.state.asleep and bool(self.waiting) and not self.coming

    @property
    def _busy(self) -> bool:
        return bool(self.waiting) or self.starts

    def sleeper(self, now_s: float) -> Sleeper | None:
        """Returns the service as the controller sees it; None: nobody can say what waking it takes."""
        found = _waking(self.service, self.policy, self.state, self.workers)
        if found is None:
            return None
        return replace(
            found,
            open=None if self.waiting is None else len(self.waiting) + self.starts,
            quiet_s=0.0 if self._busy else max(0.0, now_s - max(self.state.since_s, self.state.seen_s, self.came_s)),
            waited_s=max((now_s - at_s for at_s in self.waiting or ()), default=0.0),
        )

    def lacks_plan(self, now: datetime) -> bool:
        """Says whether requests wait for it, its plan has no instance, and another one might: GPUs are free now."""
        return self.state.short and not self.workers and (now - self.planned_at).total_seconds() >= PLANS_ANEW_S

    def note(self, now_s: float) -> None:
        """Keeps that it is busy now and then, and whether requests wait for it that cannot wake it."""
        state = replace(self.state, short=self.state.asleep and bool(self.waiting))
        if self._busy and not state.asleep and now_s - state.seen_s >= STRETCH_S:
            state = replace(state, seen_s=now_s)
        if state != self.state:
            rows = ControllerState.objects.filter(pk=self.row.pk, version=self.row.version)
            rows.update(version=self.row.version + 1, value=state.as_json())


def looked_at(service: Service) -> tuple[SleepState, Sleeper | None]:
    """Returns a service's state, and what it takes to wake it; None: nobody knows."""
    engine_knowledge.refresh()
    state = sleep_states.of(service)
    return state, _waking(service, service.own_policy(), state, _workers([service])[service.pk])


def _waking(
    service: Service, policy: Policy, state: SleepState, workers: Mapping[tuple[str, Mode], int]
) -> Sleeper | None:
    """Returns what it takes to wake a service; None: its model is not known, or it has no plan to wake by."""
    if not workers:
        return None
    try:
        return sleep_given.sleeper(
            service.name,
            service.model_card.engine_model_name,
            policy.knobs.sleep,
            workers,
            measured_overheads.published(),
            awake=not state.asleep,
            open_requests=None,
            quiet_s=0.0,
            waited_s=0.0,
            idle_s=policy.tuning.sleep.idle_s,
            at_top=policy.knobs.clock == "fixed",
            measured_s={Mode.parse(name): took_s for name, took_s in state.wakings_s.items()},
        )
    except UnknownConfiguration as error:
        log.warning("%s stays awake: what it costs to wake is not known: %s", service.name, error)
        return None


# -- what there is -----------------------------------------------------------------------------------


def _read(client: redis.Redis, now: datetime) -> list[_Sleeping]:
    """Reads the services that may sleep now; so many queries for fifty as for one."""
    every = Service.objects.select_related("model_card").order_by("name")
    policies = {own: own.own_policy() for own in every}
    planned = _planned_at([own for own, policy in policies.items() if policy.knobs.sleep != sleep_given.OFF])
    services = [own for own in every if own.pk in planned]
    if not services:
        return []
    engine_knowledge.refresh()
    rows, states = _rows(services, now), sleep_states.of_all(services)
    waiting = waiting_since(client) if gateways_known(client) else None
    workers, came_s, coming = _workers(services), _came_s(services), _coming(services)
    return [
        _Sleeping(
            own,
            policies[own],
            planned[own.pk],
            rows[own.pk],
            states[own.pk],
            None if waiting is None else waiting.get(own.name, ()),
            workers[own.pk],
            came_s.get(own.name, 0.0),
            frozenset(coming[own.pk]),
        )
        for own in services
    ]


def _planned_at(services: Collection[Service]) -> dict[int, datetime]:
    """Returns when those were last planned, by key, that have a plan and whose decisions act now."""
    if not services:
        return {}
    paused = set(active_operations.open_pauses().filter(loop=Loop.SCALE).values_list("service", flat=True))
    modes = {mode.service_id: mode for mode in ServiceMode.objects.filter(service__in=services)}
    idle = paused | {pk for pk, mode in modes.items() if not mode.acts}
    plans = ControllerState.objects.filter(kind=Loop.CARBON, service__in=services).exclude(service__in=idle)
    return dict(plans.values_list("service", "updated_at"))


def _rows(services: Collection[Service], now: datetime) -> dict[int, ControllerState]:
    """Returns the rows of the states, and makes those that are not there yet."""
    rows = {row.service_id: row for row in ControllerState.objects.filter(kind=KIND, service__in=services)}
    for own in services:
        if own.pk not in rows:
            state = sleep_states.of(own)
            value = replace(state, since_s=now.timestamp(), wakings_s=_wakings_s(own, state.kind, now)).as_json()
            rows[own.pk], _ = ControllerState.objects.get_or_create(kind=KIND, service=own, defaults={"value": value})
    return rows


def _workers(services: Collection[Service]) -> Mapping[int, Counter[tuple[str, Mode]]]:
    """Returns the instances of each one's plan, by its key and by (site, mode)."""
    found: defaultdict[int, Counter[tuple[str, Mode]]] = defaultdict(Counter)
    pools = Pool.objects.filter(service__in=services, request_class__partition=F("service__partition"))
    for pk, site, workers in pools.values_list("service", "site__name", "workers"):
        for mode, count in workers_from_json(workers).items():
            found[pk][site, mode] += count
    return found


def _came_s(services: Collection[Service]) -> dict[str, float]:
    """Returns until when requests of each have come, by name."""
    own = DemandSketch.objects.filter(service__in=[own.name for own in services])
    newest = own.values_list("service").annotate(at=Max("start_at"))
    return {name: at.timestamp() + STRETCH_S for name, at in newest}


def _coming(services: Collection[Service]) -> Mapping[int, set[str]]:
    """Returns the states of each one's engines that are to run, by its key."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    rows = Instance.objects.filter(pool__service__in=services, desired=Instance.Desired.RUNNING)
    for pk, state in rows.exclude(state=Instance.State.STOPPED).values_list("pool__service", "state"):
        found[pk].add(state)
    return found


def _wakings_s(service: Service, kind: str, now: datetime) -> dict[str, float]:
    """Returns the seconds that waking a service took in each mode, by its name, where that was measured: from vLLM's
    level 1, or by a start.
    """
    model, known = service.model_card.engine_model_name, measured_overheads.table(service, now)
    modes = {mode for _, mode in _workers([service])[service.pk]}
    keys = {
        mode.name: wake_key(model, mode.gpu, mode.tp)
        if kind == sleep_given.LEVEL
        else start_key(model, mode.gpu, mode.tp, warm=True)
        for mode in modes
    }
    return {name: known.seconds[key] for name, key in keys.items() if key in known.seconds}


# -- a change ----------------------------------------------------------------------------------------


def _change(
    own: _Sleeping,
    asleep: bool,
    effects: Effects,
    notes: list[dict[str, object]],
    reporting: Collection[str],
    now: datetime,
) -> frozenset[str]:
    """Puts the service to sleep, or wakes it, with its decision. Returns the nodes to nudge."""
    context = turn_context.resolve(own.service, now, reporting)
    effects = sleep.of_service(effects, own.service.name)
    ending: Mapping[int, str] = {}
    if asleep and own.state.by_level:
        ending = host_memory.ending(own.service, agents.states(agents.connect(), reporting))
        effects = _with_words(effects, ending.values())
    kind = own.state.kind
    wakings_s = _wakings_s(own.service, kind, now)
    value = SleepState(asleep, now.timestamp(), own.state.seen_s, wakings_s=wakings_s, kind=kind).as_json()
    index = -round(1000 * now.timestamp())
    started_at = timezone.now()
    try:
        with transaction.atomic():
            status = epochs.status_of(effects)
            epoch = epochs.stored_epoch(context, Loop.SCALE, index, started_at, time.monotonic(), status)
            apply.lock()
            recordings.keep(epoch, notes, now)
            epochs.swap(own.row, value)
            decision_rows.of_service(epoch, effects, now)
            Instance.objects.filter(pk__in=ending).update(desired=Instance.Desired.DRAINING)
            decisions = decision_rows.latest_by_pool(own.service)
            touched = apply.apply_placement(own.service, context.reporting, decisions)
            nodes = Instance.objects.filter(pk__in=ending).values_list("node__name", flat=True)
            return touched | {name for name in nodes if name}
    except (epochs.Stale, IntegrityError):
        log.info("%s: another turn came first", own.service)
        return frozenset()


def _with_words(effects: Effects, words: Iterable[str]) -> Effects:
    why = effects.rationale
    return replace(effects, rationale=replace(why, summary=" ".join((why.summary, *words))))
