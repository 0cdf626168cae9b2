"""Two services on the demo's fleet: each gets GPUs, whichever came first, and no GPU is had twice."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import redis

from core.policy.live_presets import LIVE
from core.types import Loop
from pools.models import Instance, InstanceGpu, Service
from scheduler import agents, tasks
from scheduler.control import epochs, service_policy, turn_context
from scheduler.control.snapshot.offered_nodes import offered_nodes, to_give_back
from scheduler.models import ControlMode, ServiceMode
from tests.fakes.house import refresh_feeds, report_all, requests_came, second_service

pytestmark = pytest.mark.django_db
LOOPS = (Loop.CARBON, Loop.SCALE, Loop.SHARD)
# One of each kind that gave a second service nothing: budgets that are whole sites, and all GPUs filled.
SYSTEMS = ("greenserve", "greenserve_epochs", "single_pool")
EACH = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SYSTEMS else pytest.mark.slow("every preset")) for name in LIVE]
)


def set_policy(service: Service, name: str) -> None:
    service_policy.change(service, name, {})
    service.refresh_from_db()


def run_all(service: Service, at: datetime) -> None:
    for loop in LOOPS:
        epochs.run(service, loop, at)
    service.refresh_from_db()


def traffic(at: datetime, *services: str) -> None:
    for name, count in (("llama3-70b", 120), ("llama3-8b", 240)):
        if name in services:
            requests_came(at, count=count, over_s=60, prompt_tokens=500, output_tokens=130, service=name)


def turns(client: redis.Redis, at: datetime, count: int, by_s: float = 10.0) -> datetime:
    """So many turns of the loops, each after agents have done what they were to do."""
    for _ in range(count):
        at += timedelta(seconds=by_s)
        report_all(client, at=at)
        refresh_feeds(at)
        epochs.settle(client, at)
        reporting = agents.reporting(client, at)
        for service in to_give_back(reporting, at):
            epochs.run_now(service, at)
        for loop in LOOPS:
            for service in Service.objects.all():
                epochs.run(service, loop, at)
        epochs.settle(client, at)
    return at


def running(service: Service) -> int:
    """GPUs of its instances that run."""
    rows = Instance.objects.filter(pool__service=service, desired="running")
    return sum(rows.values_list("tp", flat=True))


def had_once() -> bool:
    gpus = InstanceGpu.objects.filter(released_at__isnull=True, beside=False).values_list("gpu", flat=True)
    return len(gpus) == len(set(gpus))


@EACH
def test_second_service_gets_gpus_of_a_first_that_had_all_to_itself(
    service: Service, redis_client: redis.Redis, now: datetime, name: str
) -> None:
    set_policy(service, name)
    traffic(now, "llama3-70b")
    run_all(service, now)
    assert running(service) > 0
    second = second_service(name)
    set_policy(second, name)
    at = now + timedelta(seconds=5)
    report_all(redis_client, at=at)
    traffic(at, "llama3-70b", "llama3-8b")
    turns(redis_client, at, 2)
    assert running(service) > 0
    assert running(second) > 0
    assert had_once()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param("dynamollm", "freesh", marks=pytest.mark.slow("profiles of nine classes")),
        ("greenserve", "single_pool"),
    ],
)
def test_services_of_different_policies_share(
    service: Service, redis_client: redis.Redis, now: datetime, first: str, then: str
) -> None:
    set_policy(service, first)
    second = second_service(then)
    set_policy(second, then)
    traffic(now, "llama3-70b", "llama3-8b")
    turns(redis_client, now, 2)
    assert running(service) > 0
    assert running(second) > 0
    assert had_once()


def context_of(service: Service, client: redis.Redis, at: datetime) -> turn_context.TurnContext:
    return turn_context.resolve(service, at, agents.reporting(client, at))


def test_budgets_of_whole_sites_are_no_use_of_gpus(service: Service, redis_client: redis.Redis, now: datetime) -> None:
    set_policy(service, "greenserve")
    traffic(now, "llama3-70b")
    run_all(service, now)
    second = second_service("greenserve")
    offered = sum(node.gpus for node in offered_nodes(context_of(second, redis_client, now)))
    assert offered == 30 - running(service)


def test_gpus_are_asked_back_once(service: Service, redis_client: redis.Redis, now: datetime) -> None:
    set_policy(service, "single_pool")
    run_all(service, now)
    assert to_give_back(agents.reporting(redis_client, now), now) == []
    second_service("single_pool")
    traffic(now, "llama3-8b")
    reporting = agents.reporting(redis_client, now)
    assert to_give_back(reporting, now) == [service]
    assert to_give_back(reporting, now) == []


def test_task_has_a_service_give_back_what_another_needs(
    service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    set_policy(service, "single_pool")
    run_all(service, now)
    had = running(service)
    second = second_service("single_pool")
    requests_came(now, count=240, over_s=60, service=second.name)
    tasks.run_epochs("carbon")
    assert running(service) < had


def test_nothing_is_asked_of_a_service_whose_decisions_do_not_act(
    service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    set_policy(service, "single_pool")
    run_all(service, now)
    ServiceMode.objects.create(service=service, mode=ControlMode.ADVISE)
    second = second_service("single_pool")
    traffic(now, "llama3-8b")
    assert to_give_back(agents.reporting(redis_client, now), now) == []
    assert offered_nodes(context_of(second, redis_client, now)) == ()
