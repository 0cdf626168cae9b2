"""Runs what beat asks of the scheduler, and what its worker does when it starts."""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import shared_task
from celery.signals import worker_ready
from django.conf import settings
from django.utils import timezone

from core.types import Loop
from pools import wire
from pools.models import Service
from pools.registration import node_identities
from scheduler import agents, webhooks
from scheduler.batches import batch_runner as batches
from scheduler.batches.sending import GatewaySender
from scheduler.control import (
    active_operations,
    advising,
    ahead_of_clock,
    epochs,
    realised_figures,
    service_policy,
    sleeping,
)
from scheduler.control.apply import publish as publishing
from scheduler.control.epochs import EPOCH_LOOPS
from scheduler.control.snapshot import offered_nodes
from scheduler.models import IdempotentAnswer
from scheduler.power import power_loop
from scheduler.trials.tasks import model_baseline as model_baseline
from scheduler.trials.tasks import turn_trials as turn_trials
from scheduler.whatif import remote_simulations
from scheduler.whatif.tasks import mind_studies as mind_studies
from scheduler.whatif.tasks import run_study as run_study
from telemetry.carbon import feeds

log = logging.getLogger(__name__)

SIMULATION_LIMIT_S = 12 * 3600
BATCHES_LIMIT_S = 3600  # a run, its last requests, and what large files take
BOOTSTRAP_RETRY_S = 2.0
BOOTSTRAP_PATIENCE = 10  # attempts until the fleet is started on the nodes that have come up so far


@shared_task
def run_epochs(kind: str) -> None:
    """Runs one loop's epoch for every service; a fault in one service does not keep the others waiting.

    Where periods end together the slower loops go first, so that each works within its new envelope rather than
    within the one that is about to go. Policies that only advise take theirs afterwards. Those that have run already
    are left alone, so that beat may ask as often as the service with the shortest period needs. A service without a
    plan goes the way of the first start, which waits for nodes and feeds. One that has GPUs which another service needs
    plans anew at once, and so does one whose epochs lie ahead of the clock.
    """
    now = timezone.now()
    every = list(Service.objects.all())
    services = [service for service in every if active_operations.loops_run(service)]
    planned = [service for service in services if epochs.has_plan(service)]
    if len(planned) < len(services):
        bootstrap.delay()
    for service in planned:
        if ahead_of_clock.give_back(service, now):
            epochs.run_now(service, now)
    for loop in EPOCH_LOOPS[: EPOCH_LOOPS.index(Loop(kind)) + 1]:
        for service in planned:
            epochs.run(service, loop, now)
    for service in offered_nodes.to_give_back(agents.reporting(agents.connect(), now), now):
        if service in planned:
            epochs.run_now(service, now)
    for service in every:
        advising.run(service, now)


@shared_task(bind=True)
def bootstrap(self: Any, attempt: int = 0) -> None:
    """Gives services without a plan their first one at once, rather than after a whole period.

    It waits for all nodes for a while, then goes on with those that are there. With none it gives up: the next epoch
    that is due comes back here.
    """
    running = [service for service in Service.objects.all() if active_operations.loops_run(service)]
    services = [service for service in running if not epochs.has_plan(service)]
    if not services:
        return
    expected, present = agents.presence(timezone.now())
    if len(present) < len(expected) and attempt < BOOTSTRAP_PATIENCE:
        log.info("waiting for nodes: %d of %d report", len(present), len(expected))
        self.apply_async(kwargs={"attempt": attempt + 1}, countdown=BOOTSTRAP_RETRY_S)
        return
    if not present:
        log.warning("no node reports: there is nothing to plan with")
        return
    feeds.poll(timezone.now(), patience_s=feeds.RUN_S)  # beat has not come round to it yet
    for loop in EPOCH_LOOPS:
        for service in services:
            epochs.run(service, loop, timezone.now())


@worker_ready.connect
def _on_worker_ready(**_: object) -> None:
    bootstrap.delay()


@shared_task
def take_up_policy(service_id: int) -> None:
    """Runs all loops at once, since the service's policy has changed. Without a plan the first start runs them."""
    service = Service.objects.get(pk=service_id)
    if epochs.has_plan(service):
        epochs.run_now(service, timezone.now())
    else:
        bootstrap.delay()


@shared_task
def publish() -> None:
    """Finishes what placements wait for, then publishes what agents and gateways are to do."""
    now = timezone.now()
    client = agents.connect()
    for service in Service.objects.all():
        if service_policy.taken_up(service, now):
            take_up_policy.delay(service.pk)
    touched = epochs.settle(client, now)
    publishing.publish(client, now)
    publishing.nudge(touched)
    node_identities.follow(client, now)
    beat("epochs", period_s=5.0, detail="publishing")


@shared_task
def mind_sleepers() -> None:
    """Wakes services that requests wait for, and puts those to sleep that have had none for long enough."""
    sleeping.look(timezone.now())


@shared_task
def mind_servers() -> None:
    """Switches servers off that nothing needs, and on again before they are needed."""
    power_loop.look(timezone.now())


@shared_task
def realise_decisions() -> int:
    return realised_figures.fill(timezone.now())


@shared_task(acks_late=False, time_limit=SIMULATION_LIMIT_S)
def simulate(run: str, job: dict[str, Any]) -> None:
    """Runs a simulation from a queue of its own. When this worker is lost, no other gets it: the caller asks again."""
    remote_simulations.serve(run, job)


@shared_task(acks_late=False, time_limit=BATCHES_LIMIT_S)
def run_batches() -> None:
    """Batches go on from wherever the last run came to; beat asks again."""
    batches.work(lambda: GatewaySender(settings.GREENSERVE_GATEWAY_URL))


@shared_task
def tell_webhooks() -> int:
    """Finds the events that subscribers are to receive, and sends them."""
    now = timezone.now()
    webhooks.collect(now)
    return webhooks.deliver(now)


@shared_task
def tidy_outside() -> int:
    """Forgets old deliveries of webhooks, and answers whose keys are good for nothing any more."""
    now = timezone.now()
    return (
        webhooks.forget(now) + IdempotentAnswer.objects.filter(created_at__lt=now - IdempotentAnswer.KEPT).delete()[0]
    )


@shared_task
def heartbeat() -> None:
    """Counts a run of this control plane's worker: its supervisor watches whether the count changes."""
    agents.connect().incr(wire.runs_key(settings.GREENSERVE_PLANE))


def beat(process: str, period_s: float, detail: str = "") -> None:
    name = wire.process_name(process, settings.GREENSERVE_PLANE)
    message = wire.Heartbeat(name, time.time(), period_s, detail)
    agents.connect().set(wire.alive_key(name), wire.encode(message), ex=wire.HEARTBEAT_TTL_S)
