"""mu-Serve's placement on live services: by the policy's kind, and another replica for a starved model."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import redis

from core.controllers.clock.muserve_clock import STARVED
from core.types import Loop
from pools.models import Instance, Service
from scheduler.control import epochs, service_policy
from scheduler.models import Decision
from tests.fakes.house import report_all, requests_came, second_service

pytestmark = pytest.mark.django_db
LOOPS = (Loop.CARBON, Loop.SCALE)


def served(services: list[Service], policy: str, client: redis.Redis, at: datetime) -> dict[str, dict[str, int]]:
    """Returns each service's workers, all sites together, by TP degree, once the policy has placed them."""
    for name, count in (("llama3-70b", 120), ("llama3-8b", 240)):
        requests_came(at, count=count, over_s=60, prompt_tokens=500, output_tokens=130, service=name)
    report_all(client, at=at)
    for service in services:
        service_policy.change(service, policy, {})
    for loop in LOOPS:
        for service in services:
            epochs.run(service, loop, at)
    return {service.name: workers(service) for service in services}


def workers(service: Service) -> dict[str, int]:
    found: dict[str, int] = {}
    for pool in service.pools.filter(request_class__partition__name="whole"):
        for name, count in pool.workers.items():
            found[name] = found.get(name, 0) + count
    return found


@pytest.mark.parametrize(("policy", "small_has_a_whole_group"), [("alpaserve_scaling", True), ("muserve", False)])
def test_small_model_beside_a_large_one_gets_what_the_policys_placement_gives_it(
    service: Service, redis_client: redis.Redis, now: datetime, policy: str, *, small_has_a_whole_group: bool
) -> None:
    """AlpaServe's groups are of one size for both models. mu-Serve gives the small one as few GPUs as hold it."""
    found = served([service, second_service(policy)], policy, redis_client, now)
    degrees = {name: {mode.rpartition("/")[2] for mode in own} for name, own in found.items()}
    assert "TP1" not in degrees["llama3-70b"]
    assert degrees["llama3-8b"] == (degrees["llama3-70b"] if small_has_a_whole_group else {"TP1"})


def test_starved_model_gets_another_replica_once(service: Service, redis_client: redis.Redis, now: datetime) -> None:
    before = served([service], "muserve", redis_client, now)["llama3-70b"]
    uid = Instance.objects.filter(pool__service=service, desired="running").values_list("uid", flat=True)[0]
    at = now + timedelta(seconds=40)
    for starved, more in ((STARVED - 1, 0), (STARVED, 1), (STARVED + 30, 1)):
        Decision.objects.create(
            kind="clock", at=at, service=service, instance_uid=uid, reason="at_limit", inputs={"starved": starved}
        )
        at += timedelta(seconds=31)
        report_all(redis_client, at=at)
        epochs.run(service, Loop.SCALE, at)
        assert sum(workers(service).values()) == sum(before.values()) + more
    last = Decision.objects.filter(kind="scale", service=service).latest("at", "pk")
    assert last.reason == "congested"
    assert "gets another replica" in last.summary
