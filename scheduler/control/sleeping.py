"""Puts services without traffic to sleep, and wakes those that requests wait for. Looks each second, out of epochs.

What comes and waits is what gateways say of their open requests: they do so at once when the first request for a
service that sleeps arrives. Each change is an epoch of the scale loop out of turn, since it decides how many instances
there are: with its decision, its placement and its pause.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

import redis
from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone

from core.controllers.fleet import sleep
from core.controllers.fleet.sleep import Place, SleepConfig, Sleeper, SleepObservation
from core.engine.engine_params import UnknownConfiguration
from core.engine.overheads import Overheads
from core.observations import asking
from core.observations.demand.class_arrivals import STRETCH_S
from core.observations.fleet import sleep_given
from core.types import Effects, Loop, Mode, PutToSleep, WakeUp
from pools.models import Gpu, InstanceGpu, Service
from pools.open_requests import gateways_known, open_requests
from scheduler import agents
from scheduler.control import active_operations, decision_rows, epochs, recordings, sleep_states, turn_context
from scheduler.control.apply import apply, publish
from scheduler.control.sleep_states import KIND, SleepState
from scheduler.control.turn_context import TurnContext
from scheduler.json_values import workers_from_json
from scheduler.models import ControllerState
from telemetry.models import DemandSketch

log = logging.getLogger(__name__)


def look(now: datetime) -> None:
    """Takes one turn for all services that may sleep; cheap where none may."""
    services = [own for own in Service.objects.all() if _may_sleep(own)]
    if not services:
        return
    client = agents.connect()
    reporting = agents.reporting(client, now)
    found = [_Sleeping(turn_context.resolve(own, now, reporting), client) for own in services]
    sleepers = {own.service.pk: sleeper for own in found if (sleeper := own.observed()) is not None}
    if not sleepers:
        return
    observation = SleepObservation(now.timestamp(), tuple(sleepers.values()), _free(reporting))
    with asking.noting() as notes:
        _, effects = asking.step(sleep.step, None, observation, SleepConfig())
    wishes = {command.service: isinstance(command, PutToSleep) for command in _changes(effects)}
    touched: frozenset[str] = frozenset()
    for own in sorted(found, key=lambda own: not wishes.get(own.service.name, False)):  # who makes room goes first
        asleep = wishes.get(own.service.name)
        if asleep is not None:
            touched |= own.change(asleep, effects, notes)
    if touched:
        publish.publish(client, timezone.now())
        publish.nudge(touched)


def _may_sleep(service: Service) -> bool:
    if service.policy_knobs().sleep == sleep_given.OFF or not epochs.has_plan(service):
        return False
    decides = active_operations.loops_run(service) and active_operations.acts(service)
    return decides and not active_operations.is_paused(service, Loop.SCALE)


def _changes(effects: Effects) -> Iterable[PutToSleep | WakeUp]:
    return (command for command in effects.commands if isinstance(command, (PutToSleep, WakeUp)))


def _free(reporting: Iterable[str]) -> Mapping[Place, int]:
    """Counts the GPUs of nodes that report, and that no instance has."""
    taken = InstanceGpu.objects.filter(released_at__isnull=True).values("gpu_id")
    rows = Gpu.objects.filter(node__schedulable=True, node__name__in=list(reporting)).exclude(pk__in=taken)
    return Counter(rows.values_list("node__cluster__site__name", "gpu_type"))


class _Sleeping:
    """A service that may sleep, in one turn."""

    def __init__(self, context: TurnContext, client: redis.Redis) -> None:
        self._context, self._client = context, client
        self.service = context.service
        self._row, _ = ControllerState.objects.get_or_create(
            kind=KIND, service=self.service, defaults={"value": SleepState(since_s=context.now.timestamp()).as_json()}
        )
        self._state = sleep_states.read(self._row, context.knobs.sleep)

    def observed(self) -> Sleeper | None:
        """Returns the service as the controller sees it, and keeps when requests of it were last open; None: its model
        is not known, so that nobody can say what waking costs."""
        now_s, name = self._context.now.timestamp(), self.service.name
        known = gateways_known(self._client)
        since = [own.started_at_s for own in open_requests(self._client, name)] if known else []
        if since and not self._state.asleep and now_s - self._state.seen_s >= STRETCH_S:
            self._keep_seen(now_s)
        last = DemandSketch.objects.filter(service=name).aggregate(at=Max("start_at"))["at"]
        recent_s = 0.0 if last is None else last.timestamp() + STRETCH_S
        quiet_s = max(0.0, now_s - max(self._state.since_s, self._state.seen_s, recent_s))
        card, knobs = self.service.model_card, self._context.knobs
        try:
            return sleep_given.sleeper(
                name,
                card.engine_model_name,
                knobs.sleep,
                self._workers(),
                Overheads(),
                awake=not self._state.asleep,
                open_requests=len(since) if known else None,
                quiet_s=quiet_s,
                waited_s=max((now_s - at_s for at_s in since), default=0.0),
                idle_s=self._context.tuning.sleep.idle_s,
                at_top=knobs.clock == "fixed",
                keeps_gpus=knobs.sleep == sleep_given.LEVEL,
            )
        except UnknownConfiguration as error:
            log.warning("%s stays awake: what it costs to wake is not known: %s", name, error)
            return None

    def _workers(self) -> dict[tuple[str, Mode], int]:
        found: Counter[tuple[str, Mode]] = Counter()
        for pool in self._context.pools:
            for mode, count in workers_from_json(pool.workers).items():
                found[pool.site.name, mode] += count
        return dict(found)

    def _keep_seen(self, now_s: float) -> None:
        value = {**self._row.value, "seen_s": now_s}
        rows = ControllerState.objects.filter(pk=self._row.pk, version=self._row.version)
        if rows.update(version=self._row.version + 1, value=value):
            self._row.refresh_from_db()
            self._state = sleep_states.read(self._row, self._context.knobs.sleep)

    def change(self, asleep: bool, effects: Effects, notes: list[dict[str, object]]) -> frozenset[str]:
        """Puts the service to sleep, or wakes it, with its decision. Returns the nodes to nudge."""
        context, now = self._context, self._context.now
        effects = sleep.of_service(effects, self.service.name)
        value = SleepState(asleep, now.timestamp(), self._state.seen_s).as_json()
        index = -round(1000 * now.timestamp())
        started_at = timezone.now()
        try:
            with transaction.atomic():
                status = epochs.status_of(effects)
                epoch = epochs.stored_epoch(context, Loop.SCALE, index, started_at, time.monotonic(), status)
                apply.lock()
                recordings.keep(epoch, notes, now)
                epochs.swap(self._row, value)
                decision_rows.of_service(epoch, effects, now)
                return apply.apply_placement(
                    self.service, context.reporting, decision_rows.latest_by_pool(self.service)
                )
        except (epochs.Stale, IntegrityError):
            log.info("%s: another turn came first", self.service)
            return frozenset()
