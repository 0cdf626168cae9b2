"""Three services and one GPU: each is answered in its turn, and nobody wakes or sleeps without a reason."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext

from core.types import Loop
from pools import wire
from pools.models import Gpu, Instance, InstanceGpu, Node, Service
from scheduler import agents
from scheduler.control import epochs, service_policy, sleeping
from scheduler.control.apply.gpu_turns import FALLS_ASLEEP_S
from scheduler.control.snapshot.offered_nodes import to_give_back
from scheduler.models import ControllerState, Decision
from tests.fakes.house import report_all, requests_came, second_service

pytestmark = pytest.mark.django_db
LOOPS = (Loop.CARBON, Loop.SCALE, Loop.SHARD)
IDLE_S = 600.0
NAMES = ("llama3-70b", "llama3-8b", "third")


class Turns:
    """Services of a small model on few GPUs, and what their gateway says."""

    def __init__(self, client: redis.Redis, at: datetime) -> None:
        self.client, self.at, self._open = client, at, dict.fromkeys(NAMES, 0)
        self.memory_free_bytes: int | None = None
        first = Service.objects.get()
        second = second_service("single_pool")
        Service.objects.filter(pk=first.pk).update(model_card=second.model_card)
        one_more(second, NAMES[2])
        node = Node.objects.get(name="loc1-h100")
        Node.objects.exclude(pk=node.pk).update(schedulable=False)
        Gpu.objects.filter(node=node).exclude(index=0).delete()

    def begin(self, **kinds: str) -> None:
        """Gives each service its knob `sleep` and its first plan."""
        for own in Service.objects.all():
            sleep = {"sleep": kinds[own.name.replace("-", "_")], "tuning": {"sleep": {"idle_s": IDLE_S}}}
            service_policy.change(own, "single_pool", sleep)
        self.pass_by(1.0)
        self.plan()

    def add_gpu(self) -> None:
        gpu = Gpu.objects.get(node__name="loc1-h100")
        gpu.pk, gpu.index, gpu.uuid = None, 1, "SIM-loc1-h100-1"
        gpu.save()

    def asks(self, name: str, count: int) -> None:
        """So many requests of a service are open."""
        self._open[name] = count

    def pass_by(self, seconds: float) -> None:
        """Agents have done what they were to do, and the loops look again."""
        self.at += timedelta(seconds=seconds)
        Instance.objects.filter(desired="sleeping").update(state="sleeping")
        gone = Instance.objects.filter(desired="draining")
        InstanceGpu.objects.filter(instance__in=gone).update(released_at=self.at)
        gone.update(state="stopped", desired="stopped")
        report_all(self.client, self.at, self.memory_free_bytes)
        epochs.settle(self.client, self.at)
        self.look()

    def look(self) -> None:
        names = [name for name, count in self._open.items() for _ in range(count)]
        count = len(names)
        message = wire.OpenRequests(
            list(NAMES),
            [NAMES.index(name) for name in names],
            [f"open-{n}" for n in range(count)],
            [self.at.timestamp() - 1.0] * count,
            [300] * count,
            [100] * count,
        )
        self.client.zadd(wire.GATEWAYS_KEY, {"gateway": 1})
        self.client.set(wire.open_requests_key("gateway"), wire.encode(message))
        sleeping.look(self.at)

    def plan(self) -> None:
        for own in Service.objects.order_by("name"):
            for loop in LOOPS:
                epochs.run(own, loop, self.at)

    def has_gpu(self) -> list[str]:
        """The services whose instances run."""
        rows = Instance.objects.filter(desired="running").exclude(state="stopped")
        return sorted(set(rows.values_list("pool__service__name", flat=True)))


def one_more(like: Service, name: str) -> None:
    service = Service.objects.create(name=name, model_card=like.model_card, partition=like.partition)
    service.partitions.set(like.partitions.all())
    for slo in like.slos.all():
        service.slos.create(kind=slo.kind, objective_s=slo.objective_s, percentile=slo.percentile)
    for pool in like.pools.all():
        service.pools.create(site=pool.site, request_class=pool.request_class)


@pytest.fixture
def turns(new_service: Service, redis_client: redis.Redis, now: datetime) -> Iterator[Turns]:
    yield Turns(redis_client, now)
    redis_client.delete(wire.GATEWAYS_KEY, wire.open_requests_key("gateway"))


def test_look_asks_the_database_as_often_for_many_services_as_for_two(new_service: Service, now: datetime) -> None:
    def queries() -> int:
        for own in Service.objects.exclude(controller_states__kind=Loop.CARBON):
            service_policy.change(own, "greenserve", {"sleep": "stop"})
            ControllerState.objects.create(kind=Loop.CARBON, service=own)
        sleeping.look(now)
        with CaptureQueriesContext(connection) as captured:
            sleeping.look(now)
        return len(captured)

    one_more(new_service, "one-more")
    before = queries()
    for n in range(8):
        one_more(new_service, f"service-{n}")
    assert queries() == before


def changes() -> int:
    return sum(own.commands != [] for own in Decision.objects.filter(kind=Loop.SCALE))


def test_three_services_take_turns_on_one_gpu(turns: Turns) -> None:
    turns.begin(llama3_70b="stop", llama3_8b="stop", third="stop")
    assert turns.has_gpu() == [], "nobody has asked yet"
    for name in NAMES:
        turns.asks(name, 1)
        turns.pass_by(1.0)
        turns.pass_by(1.0)  # whoever had the GPU has gone
        assert turns.has_gpu() == [name]
        turns.asks(name, 0)
    before = changes()
    turns.pass_by(IDLE_S - 10.0)
    assert turns.has_gpu() == [NAMES[2]], "it stays awake while nobody else asks"
    assert changes() == before
    turns.pass_by(20.0)
    assert turns.has_gpu() == []


def holders() -> list[str]:
    held = InstanceGpu.objects.filter(released_at__isnull=True)
    return sorted(held.values_list("instance__pool__service__name", flat=True))


def engines() -> set[tuple[str, str]]:
    rows = Instance.objects.exclude(state="stopped").values_list("pool__service__name", "uid")
    return {(name, str(uid)) for name, uid in rows}


def test_three_services_that_sleep_by_level_take_turns_on_one_gpu_with_the_same_engines(turns: Turns) -> None:
    turns.begin(llama3_70b="level", llama3_8b="level", third="level")
    for name in NAMES:
        turns.asks(name, 1)
        turns.pass_by(1.0)
        turns.pass_by(1.0)  # whoever had the GPU sleeps
        assert turns.has_gpu() == holders() == [name]
        turns.asks(name, 0)
    before = engines()
    assert {name for name, _ in before} == set(NAMES)
    for name in NAMES:
        turns.asks(name, 1)
        turns.pass_by(1.0)
        assert holders() != [name], "its agent does not say yet that it sleeps"
        turns.pass_by(1.0)
        assert turns.has_gpu() == holders() == [name]
        turns.asks(name, 0)
    assert engines() == before, "nobody was started anew"


def test_gpu_is_free_only_when_the_agent_says_that_its_memory_is(turns: Turns) -> None:
    turns.begin(llama3_70b="level", llama3_8b="level", third="level")
    turns.asks(NAMES[0], 1)
    turns.pass_by(1.0)
    turns.asks(NAMES[0], 0)
    turns.asks(NAMES[1], 1)
    turns.pass_by(1.0)
    Instance.objects.filter(desired="sleeping").update(state="ready")  # not asleep yet
    report_all(turns.client, at=turns.at)
    epochs.settle(turns.client, turns.at)
    assert holders() == [NAMES[0]]
    assert turns.has_gpu() == []
    turns.pass_by(1.0)
    assert turns.has_gpu() == holders() == [NAMES[1]]


def test_engine_that_does_not_fall_asleep_ends(turns: Turns) -> None:
    turns.begin(llama3_70b="level", llama3_8b="level", third="level")
    turns.asks(NAMES[0], 1)
    turns.pass_by(1.0)
    turns.asks(NAMES[0], 0)
    turns.asks(NAMES[1], 1)
    turns.pass_by(1.0)
    for later_s, wish in ((FALLS_ASLEEP_S - 1.0, "sleeping"), (2.0, "draining")):
        turns.at += timedelta(seconds=later_s)
        Instance.objects.filter(desired="sleeping").update(state="ready")
        report_all(turns.client, at=turns.at)
        epochs.settle(turns.client, turns.at)
        assert set(Instance.objects.exclude(state="stopped").values_list("desired", flat=True)) == {wish}
    turns.pass_by(1.0)
    turns.pass_by(1.0)
    assert turns.has_gpu() == holders() == [NAMES[1]]


def test_engine_ends_whose_gpu_another_stays_on_and_its_service_starts_elsewhere(turns: Turns) -> None:
    turns.begin(llama3_70b="level", llama3_8b="level", third="level")
    for name in NAMES[:2]:
        turns.asks(name, 1)
        turns.pass_by(1.0)
        turns.pass_by(1.0)
        turns.asks(name, 0)
    turns.asks(NAMES[1], 1)
    turns.add_gpu()
    before = dict(engines())
    turns.asks(NAMES[0], 1)
    turns.pass_by(1.0)
    turns.pass_by(1.0)
    assert turns.has_gpu() == holders() == sorted(NAMES[:2])
    after = dict(engines())
    assert after[NAMES[1]] == before[NAMES[1]]
    assert after[NAMES[0]] != before[NAMES[0]], "it could not move to the other GPU"


@pytest.mark.parametrize(("free_gb", "sleeps"), [((40, 40, 24), 2), ((20, 20, 4), 1)])
def test_engines_end_whose_weights_the_machine_has_no_room_for(
    turns: Turns, free_gb: tuple[int, ...], sleeps: int
) -> None:
    """Each has 16 GB of weights; those that have slept longest give way."""
    turns.begin(llama3_70b="level", llama3_8b="level", third="level")
    for name, free in zip(NAMES, free_gb, strict=True):
        turns.memory_free_bytes = free * 10**9
        turns.asks(name, 1)
        for _ in range(2):
            turns.pass_by(1.0)
        assert turns.has_gpu() == [name]
        turns.asks(name, 0)
    asleep = Instance.objects.filter(state="sleeping").exclude(desired="stopped")
    assert sorted(asleep.values_list("pool__service__name", flat=True)) == sorted(NAMES[2 - sleeps : 2])
    said = [own.summary for own in Decision.objects.filter(kind=Loop.SCALE) if "GB of weights" in own.summary]
    assert len(said) == 2 - sleeps
    assert all("The engine of llama3-" in own for own in said)


def test_service_with_requests_keeps_its_gpu_until_they_have_ended(turns: Turns) -> None:
    turns.begin(llama3_70b="stop", llama3_8b="stop", third="stop")
    turns.asks(NAMES[0], 1)
    turns.pass_by(1.0)
    turns.asks(NAMES[1], 1)
    turns.asks(NAMES[2], 1)
    turns.pass_by(5.0)
    assert turns.has_gpu() == [NAMES[0]]
    turns.asks(NAMES[0], 0)
    Instance.objects.filter(state="ready").update(state="starting")
    turns.look()
    assert turns.has_gpu() == [NAMES[0]], "an engine that starts is not idle, though its request has gone"
    turns.pass_by(1.0)
    turns.pass_by(1.0)
    assert turns.has_gpu() == [NAMES[1]]


def test_service_that_never_sleeps_uses_gpus_of_one_that_does_until_requests_wait(turns: Turns) -> None:
    turns.add_gpu()
    requests_came(turns.at, count=3000, over_s=60, prompt_tokens=500, output_tokens=130)
    turns.begin(llama3_70b="off", llama3_8b="stop", third="stop")
    turns.pass_by(1.0)
    assert turns.has_gpu() == [NAMES[0]]
    assert InstanceGpu.objects.filter(released_at=None).count() == 2, "the one with traffic has both GPUs"
    turns.asks(NAMES[1], 1)
    turns.pass_by(1.0)
    for own in to_give_back(agents.reporting(turns.client, turns.at), turns.at):
        epochs.run_now(own, turns.at)
    for _ in range(3):
        turns.pass_by(15.0)
    assert turns.has_gpu() == [NAMES[0], NAMES[1]]
