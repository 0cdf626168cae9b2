"""Two services on the demo's fleet: each gets GPUs, whichever came first, and no GPU is had twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import unescape
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.test import Client
from django.urls import reverse

from core.controllers.fleet.explain import gpus_of
from core.observations.fleet.dynamo_servers import Servers
from core.policy.presets import PRESETS
from core.types import Loop, Mode, PoolKey, ScaleTo
from pools.models import Gpu, Instance, InstanceGpu, Partition, Pool, Service
from scheduler import agents, tasks
from scheduler.control import epochs, service_policy, shortages, turn_context
from scheduler.control.apply import apply
from scheduler.control.snapshot.offered_nodes import offered_nodes, servers, to_give_back
from scheduler.json_values import workers_from_json
from scheduler.models import ControllerState, ControlMode, Decision, ServiceMode
from scheduler.operations.configure import consequences
from telemetry.models import CarbonFeed
from tests.fakes.house import refresh_feeds, report_all, requests_came, second_service

pytestmark = pytest.mark.django_db
LOOPS = (Loop.CARBON, Loop.SCALE, Loop.SHARD)
# One of each kind that gave a second service nothing: budgets that are whole sites, and all GPUs filled.
SYSTEMS = ("greenserve",)
EACH = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SYSTEMS else pytest.mark.slow("every preset")) for name in PRESETS]
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


def servers_of(service: Service, client: redis.Redis, at: datetime) -> Servers | None:
    context = context_of(service, client, at)
    return servers(context, offered_nodes(context))


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


def share_of_fleet(service: Service, client: redis.Redis, at: datetime) -> int:
    return sum(node.gpus for node in offered_nodes(context_of(service, client, at)))


def test_weights_floors_and_ceilings_set_what_a_service_may_plan_with(
    service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    set_policy(service, "single_pool")
    run_all(service, now)
    second = second_service("single_pool")
    requests_came(now, count=2000, over_s=60, prompt_tokens=8000, output_tokens=3000, service=second.name)
    requests_came(now, count=2000, over_s=60, prompt_tokens=8000, output_tokens=3000, service=service.name)
    equal = share_of_fleet(second, redis_client, now)
    second.weight = 3.0
    second.save()
    assert share_of_fleet(second, redis_client, now) > equal
    second.weight, second.max_gpus = 1.0, 2
    second.save()
    assert share_of_fleet(second, redis_client, now) == 2


def test_service_with_fewer_gpus_than_classes_has_instances(
    service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    """FREESH planned an instance for each class, or none."""
    second = second_service("freesh")
    Service.objects.filter(pk=second.pk).update(max_gpus=1)
    second.refresh_from_db()
    set_policy(second, "freesh")
    report_all(redis_client, at=now)
    traffic(now, "llama3-8b")
    run_all(second, now)
    assert running(second) == 1
    summary = Decision.objects.filter(service=second, kind="carbon").latest("pk").summary
    assert "served by LL's instances" in summary


def test_decisions_and_page_say_whom_scarcity_costs_what_and_why(
    service: Service, redis_client: redis.Redis, now: datetime, admin_client: Client
) -> None:
    set_policy(service, "single_pool")
    run_all(service, now)
    second = second_service("single_pool")
    for own in (service, second):
        requests_came(now, count=2000, over_s=60, prompt_tokens=8000, output_tokens=3000, service=own.name)
    to_give_back(agents.reporting(redis_client, now), now)
    short = shortages.of(second)
    assert short is not None
    text = short.text(second.name)
    assert text.startswith(f"{second.name} gets ")
    assert f"{service.name} has" in text
    run_all(second, now)
    assert Decision.objects.filter(service=second, kind="carbon").latest("pk").summary.endswith(text)
    page = reverse("service", args=[second.name])
    assert text in unescape(admin_client.get(page).content.decode())
    overview = unescape(admin_client.get("/").content.decode())
    assert text.rstrip(".") in overview
    assert f'<a href="{page}">service {second.name}</a>' in overview
    shown = {own["name"]: own["short"] for own in admin_client.get("/api/v1/services/").json()["results"]}
    assert shown[second.name] == {
        "gpus_wanted": short.wanted,
        "gpus_given": short.got,
        "unserved_rps": short.rps,
        "reason": "others",
        "max_gpus": None,
        "gpus_of_others": short.others,
    }
    assert short.others[service.name] > 0
    second.delete()
    to_give_back(agents.reporting(redis_client, now), now)
    assert shortages.of(service) is None
    assert admin_client.get(f"/api/v1/services/{service.name}/").json()["short"] is None
    assert " GPUs that it needs" not in admin_client.get("/").content.decode()


def test_service_that_is_alone_keeps_below_its_ceiling(
    service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    Service.objects.update(max_gpus=8)
    service.refresh_from_db()
    set_policy(service, "single_pool")
    traffic(now, "llama3-70b")
    run_all(service, now)
    assert 0 < running(service) <= 8


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"min_gpus": 8, "max_gpus": 4}, "max_gpus", "4 is below min_gpus, 8; raise it, or lower min_gpus"),
        ({"max_gpus": 0}, "max_gpus", "0 is below 1; leave it out"),
        ({"weight": 0.0}, "weight", "give a number above 0"),
    ],
)
def test_part_that_cannot_be_meant_is_refused(
    service: Service, values: dict[str, float], field: str, words: str
) -> None:
    for name, value in values.items():
        setattr(service, name, value)
    with pytest.raises(ValidationError) as refused:
        service.full_clean()
    assert any(words in text for text in refused.value.message_dict[field])
    with pytest.raises(IntegrityError), transaction.atomic():
        service.save()


def test_form_warns_of_floors_and_ceilings_that_cannot_be_kept(service: Service) -> None:
    service.min_gpus = 31
    assert [own.text for own in consequences.of(service) if own.field == "min_gpus"] == [
        "The floors of all services come to 31 GPUs, and the fleet has 30: where all need them, each gets fewer, by "
        "weight. Lower some."
    ]
    service.min_gpus, service.max_gpus = 0, 1
    found = [own for own in consequences.of(service) if own.field == "max_gpus"]
    assert [own.level for own in found] == ["error"]
    assert "takes at least 2 GPUs" in found[0].text


def test_nothing_is_asked_of_a_service_whose_decisions_do_not_act(
    service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    set_policy(service, "single_pool")
    run_all(service, now)
    ServiceMode.objects.create(service=service, mode=ControlMode.ADVISE, gateways_only=True)
    service_policy.put_in_force(service)
    second = second_service("single_pool")
    traffic(now, "llama3-8b")
    assert to_give_back(agents.reporting(redis_client, now), now) == []
    assert offered_nodes(context_of(second, redis_client, now)) == ()


# -- many turns ------------------------------------------------------------------------------------

FLAT = """zone,start_utc,end_utc,signal,value,unit,factor,source
US-PJM-DOM,2026-01-01T00:00Z,2026-01-02T00:00Z,average,400,gCO2e/kWh,lifecycle,flat
US-PJM-COMED,2026-01-01T00:00Z,2026-01-02T00:00Z,average,300,gCO2e/kWh,lifecycle,flat
US-PJM-AEP,2026-01-01T00:00Z,2026-01-02T00:00Z,average,500,gCO2e/kWh,lifecycle,flat
"""
# Turns in which plans may still change, since demand has only begun. GreenServe's first plan is of one turn's demand.
# It is put right once the look-back is full, and less has done for as long as its loop waits for (60 s each).
SETTLED = {"greenserve": 13}
TURN_S = {"greenserve": 10.0}  # its scale loop's period; in a minute every loop of the others has its turn


@pytest.fixture
def flat_carbon(service: Service, tmp_path: Path, settings: Any) -> None:
    """Grids that do not move plans: what changes then is the services' own doing."""
    settings.GREENSERVE_FEEDS_DIR = tmp_path
    (tmp_path / "flat.csv").write_text(FLAT)
    for feed in CarbonFeed.objects.all():
        feed.config |= {"file": "flat.csv", "speedup": 1.0}
        feed.save()
        feed.points.all().delete()


@dataclass
class Pair:
    """Two services of one policy whose loops take turns, and what each turn has changed."""

    client: redis.Redis
    at: datetime
    by_s: float
    rates_rps: dict[str, float]

    def turn(self) -> dict[str, set[int]]:
        """One turn of all loops at this demand, after which nothing is had twice and both serve."""
        until = self.at + timedelta(seconds=self.by_s)
        for name, rps in self.rates_rps.items():
            requests_came(until, round(rps * self.by_s), self.by_s, prompt_tokens=500, output_tokens=130, service=name)
        self.at = turns(self.client, self.at, 1, self.by_s)
        assert had_once(), "two services have the same GPU"
        assert not overdrawn(), "services have more of a site than it has"
        serving = {name: set(wanted(name)) for name in self.rates_rps}
        assert all(serving.values()), "a service has no instance"
        return serving


def wanted(name: str) -> QuerySet[Instance, int]:
    return Instance.objects.filter(pool__service__name=name, desired="running").values_list("pk", flat=True)


def overdrawn() -> Counter[tuple[str, str]]:
    """GPUs that the pools of all services are to have above those that there are, by site and type: their budgets,
    or the workers of those whose budget is their site's."""
    found: Counter[tuple[str, str]] = Counter()
    for pool in Pool.objects.select_related("service", "site"):
        workers = gpus_of(workers_from_json(pool.workers))
        for gpu, count in (workers if pool.service.policy_knobs().whole_sites else pool.gpu_budget).items():
            found[pool.site.name, gpu] += count
    return found - Counter(Gpu.objects.values_list("node__cluster__site__name", "gpu_type"))


def changes(turns: list[dict[str, set[int]]], settled: int) -> list[int]:
    """The turns in which an instance started or stopped, once plans have settled."""
    return [number for number in range(settled + 1, len(turns)) if turns[number] != turns[number - 1]]


@pytest.mark.slow("thirty turns of all loops")
@pytest.mark.usefixtures("flat_carbon")
@pytest.mark.parametrize("name", ["greenserve_epochs", "greenserve", "freesh", "dynamollm"])
def test_two_services_share_without_flapping_for_thirty_turns(
    service: Service, redis_client: redis.Redis, now: datetime, name: str
) -> None:
    """At steady demand no instance starts or stops; what one needs when its demand doubles is not the other's."""
    Service.objects.update(expected_rps=None)  # records are all there is to plan by
    for own in (service, second_service(name)):
        set_policy(own, name)
    pair = Pair(redis_client, now, TURN_S.get(name, 60.0), {"llama3-70b": 2.0, "llama3-8b": 4.0})
    settled = SETTLED.get(name, 3)
    steady = [pair.turn() for _ in range(settled + 11)]
    assert changes(steady, settled) == []
    before = steady[-1]
    for doubled, other in permutations(pair.rates_rps):
        pair.rates_rps[doubled] *= 2.0
        busier = [pair.turn() for _ in range(settled + 5)]
        assert all(serving[other] == before[other] for serving in busier)
        assert changes(busier, settled) == []
        before = busier[-1]


# -- what kept the second service from serving, or gave out more than there is ----------------------


def test_servers_stay_what_they_are_while_others_take_gpus(
    service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    """DynamoLLM's servers were cut from what was left: of two GPUs each as soon as another service had two of a node.
    What ran on servers of four had no place among them, and went."""
    set_policy(service, "greenserve")
    second = second_service("dynamollm")
    set_policy(second, "dynamollm")
    alone = servers_of(second, redis_client, now)
    for site, workers in (
        ("location-2", {"A100-80GB/TP4": 1, "A100-80GB/TP2": 1}),
        ("location-3", {"A100-80GB/TP4": 1}),
    ):
        service.pools.filter(site__name=site).update(workers={})
        Pool.objects.filter(pk=service.pools.filter(site__name=site).first().pk).update(workers=workers)
    beside = servers_of(second, redis_client, now)
    assert alone is not None
    assert beside is not None
    assert beside.mode == alone.mode
    assert beside.at.total() < alone.at.total()


def test_class_whose_servers_were_of_another_size_gets_new_ones(
    service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    """Servers were counted on by their number alone: a class went on having one, on which nothing could run."""
    set_policy(service, "dynamollm")
    run_all(service, now)
    state = ControllerState.objects.get(kind=Loop.SCALE, service=service)
    assert state.value["servers"]
    ControllerState.objects.filter(pk=state.pk).update(value=state.value | {"server": "A100-80GB/TP2"})
    service.pools.update(workers={})
    epochs.run_now(service, now + timedelta(seconds=10))
    assert any(workers for (workers,) in service.pools.values_list("workers"))


def test_workers_of_all_pools_keep_within_the_budget_of_their_site(
    service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    """Each pool may have the whole site's GPUs, and together they may not have more: that is the other services'."""
    set_policy(service, "dynamollm")
    service.partition = Partition.objects.get(name="dynamo")
    service.save()
    mode, site = Mode("A100-80GB", 4), "location-1"
    own = service.pools.filter(site__name=site, request_class__partition=service.partition)
    small, large = (own.get(request_class__name=name) for name in ("SS", "LL"))
    names = [pool.request_class.name for pool in (small, large)]
    own.update(gpu_budget={mode.gpu: 4}, workers={})

    def ask(*counts: int) -> list[int]:
        scaled = [ScaleTo(PoolKey(site, n), {mode: c} if c else {}) for n, c in zip(names, counts, strict=True)]
        apply.apply_workers(context_of(service, redis_client, now), scaled)
        return [Pool.objects.get(pk=pool.pk).workers.get(mode.name, 0) for pool in (small, large)]

    assert ask(1, 1) == [0, 0]
    assert ask(1, 0) == [1, 0]
    assert ask(0, 1) == [0, 1]
    service.pools.filter(pk=small.pk).update(workers={mode.name: 1})  # the site's budget is smaller than it was
    assert ask(0, 1) == [0, 1]
