"""The snapshot: who may be chosen, with which load, and how old it may be."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from core.engine import gpu_types
from core.engine.gpu_types import SHIPPED
from pools import wire
from pools.gateway import redis_tasks
from pools.gateway.fleet.health_checks import HealthChecks
from pools.gateway.fleet.instance import Health
from pools.gateway.fleet.view import FleetView
from pools.gateway.redis_tasks import Refresher, Repeated, keep_refreshing
from tests.fakes.fleet import MODEL, OTHER_SECRET, SECRET, FakeFleet
from tests.unit.pools.gateway.conftest import Bench, until


def view_of(fake: FakeFleet) -> FleetView:
    view = FleetView()
    view.apply(fake.fleet(), fake.states(), time.monotonic())
    return view


@pytest.mark.parametrize(("state", "usable"), [("ready", 1), ("starting", 0), ("draining", 0), ("failed", 0)])
def test_only_ready_instances_are_chosen_from(state: str, usable: int) -> None:
    assert view_of(FakeFleet(["http://127.0.0.1:1"], state=state)).ready_instances == usable


def test_a_key_is_known_until_a_snapshot_comes_without_it() -> None:
    fake = FakeFleet([])
    view = view_of(fake)
    for _ in range(2):
        found = [view.key(secret.encode()) for secret in (SECRET, OTHER_SECRET, "stranger")]
        assert [key and key.key_id for key in found] == [1, 2, None]
    fleet = fake.fleet()
    view.apply(msgspec.structs.replace(fleet, keys=fleet.keys[1:]), {}, time.monotonic())
    assert view.key(SECRET.encode()) is None


def test_keys_are_looked_at_again_only_when_another_list_of_them_comes() -> None:
    fake = FakeFleet([])
    fleet = fake.fleet()
    view = FleetView()
    view.apply(fleet, {}, time.monotonic())
    known = view.key(SECRET.encode())
    fleet.keys.clear()  # nobody does: it shows that the list is not read
    view.apply(fleet, {}, time.monotonic())
    assert view.key(SECRET.encode()) is known
    view.apply(msgspec.structs.replace(fleet, keys=[]), {}, time.monotonic())
    assert view.key(SECRET.encode()) is None


def test_gpu_types_that_operators_entered_are_known_when_a_snapshot_has_them() -> None:
    fake, own = FakeFleet(["http://127.0.0.1:1"]), replace(SHIPPED["L40S-48GB"], name="L40S-lab")
    (state,) = fake.states().values()
    states = {"n": msgspec.structs.replace(state, instances=[_of_type(i, own.name) for i in state.instances])}
    view = FleetView()
    try:
        view.apply(msgspec.structs.replace(fake.fleet(), gpu_types=[own]), states, time.monotonic())
        assert view.ready_instances == 1
        assert gpu_types.declared() == (own,)
        view.apply(fake.fleet(), states, time.monotonic())
        assert gpu_types.declared() == ()
    finally:
        gpu_types.declare(())


def _of_type(instance: wire.InstanceState, gpu_type: str) -> wire.InstanceState:
    return msgspec.structs.replace(instance, gpu_type=gpu_type)


@pytest.mark.parametrize("age_s", [3600.0, -3600.0])
async def test_instance_is_believed_whatever_the_clock_of_its_host_says(age_s: float) -> None:
    fake, view = FakeFleet(["http://127.0.0.1:1"], age_s=age_s), FleetView()
    await Refresher(view, fake).refresh()
    HealthChecks(view).look(time.monotonic())
    (instance,) = view.services[MODEL].ready
    assert not instance.silent


def test_report_counts_also_when_its_hosts_clock_was_set_back() -> None:
    fake = FakeFleet(["http://127.0.0.1:1"])
    view = view_of(fake)
    view.gateways = 2
    view.apply(fake.fleet(), fake.states(), time.monotonic())
    (instance,) = view.services[MODEL].ready
    instance.dispatched(100, stream=True)
    assert instance.candidate().load == 2, "the other gateway is taken to have sent one as well"
    fake.age_s = 3600.0
    view.apply(fake.fleet(), fake.states(), time.monotonic())
    assert instance.candidate().load == 1


def test_load_is_what_is_seen_from_here_while_the_agent_is_silent() -> None:
    fake = FakeFleet(["http://127.0.0.1:1"], waiting=7)
    view = view_of(fake)
    view.gateways = 2
    states = fake.states()
    view.apply(fake.fleet(), states, time.monotonic())
    (instance,) = view.services[MODEL].ready
    for _ in range(5):
        instance.started(instance.dispatched(100, stream=True), 100)
        instance.ended()
    instance.dispatched(100, stream=True)
    assert instance.candidate().load >= 7
    instance.goes_silent()
    view.apply(fake.fleet(), states, time.monotonic())
    assert instance.candidate().load == 2, "its own and the other gateway's: what was reported long ago is over"
    view.apply(fake.fleet(), fake.states(), time.monotonic())
    assert instance.candidate().load == 7, "it is heard again"


def test_instance_is_left_out_and_named_when_its_address_is_unusable(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeFleet(["ftp://somewhere", "http://127.0.0.1:1"])
    view = view_of(fake)
    view.apply(fake.fleet(), fake.states(), time.monotonic())
    assert view.ready_instances == 1
    assert len(caplog.records) == 1


def test_instance_stays_with_its_node_when_another_node_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeFleet(["http://127.0.0.1:1"])
    view, (node, state) = view_of(fake), next(iter(fake.states().items()))
    forged = [msgspec.structs.replace(one, url="http://evil.example:1") for one in state.instances]
    other = msgspec.structs.replace(state, node="other", instances=forged)
    for _ in range(2):
        view.apply(fake.fleet(), {node: state, "other": other}, time.monotonic())
    assert {instance.node for instance in view.instances()} == {node}
    assert {instance.url for instance in view.instances()} == {"http://127.0.0.1:1"}
    assert caplog.text.count("which is of node") == len(forged)
    view.apply(fake.fleet(), {"other": other}, time.monotonic())
    assert view.ready_instances == len(forged), "its node is gone"


def test_load_counts_what_was_sent_since_the_report() -> None:
    fake = FakeFleet(["http://127.0.0.1:1"], waiting=2)
    view = view_of(fake)
    (instance,) = view.services[MODEL].ready
    tickets = [instance.dispatched(100, stream=False) for _ in range(5)]
    loaded = instance.candidate()
    assert (loaded.running, loaded.waiting, loaded.queued_prompt_tokens) == (0, 5, 500)
    instance.started(tickets[0], 100)
    assert (instance.candidate().running, instance.candidate().waiting) == (1, 4)
    fake.waiting = 0
    view.apply(fake.fleet(), fake.states(), time.monotonic())
    assert view.services[MODEL].ready == [instance]
    assert (instance.candidate().running, instance.candidate().queued_prompt_tokens) == (5, 0), "nothing queues there"
    for ticket in tickets[1:]:
        instance.started(ticket, 100)
        instance.ended()
    instance.ended()
    assert (instance.candidate().running, instance.candidate().waiting) == (0, 0)
    assert instance.queued_prompt_tokens == 0


def test_stream_keeps_its_place_in_the_queue_until_its_first_byte_when_the_report_shows_no_queue() -> None:
    fake = FakeFleet(["http://127.0.0.1:1"])
    view = view_of(fake)
    (instance,) = view.services[MODEL].ready
    ticket = instance.dispatched(100, stream=True)
    view.apply(fake.fleet(), fake.states(), time.monotonic())
    assert instance.candidate().queued_prompt_tokens == 100
    instance.started(ticket, 100)
    assert instance.candidate().queued_prompt_tokens == 0


def test_counts_survive_when_an_instance_drains_and_comes_back() -> None:
    fake = FakeFleet(["http://127.0.0.1:1"])
    view = view_of(fake)
    (instance,) = view.services[MODEL].ready
    instance.dispatched(10, stream=True)
    for state in ("draining", "draining", "ready"):
        fake.state = state
        view.apply(fake.fleet(), fake.states(), time.monotonic())
    assert view.services[MODEL].ready == [instance]
    assert instance.in_flight == 1


def test_instance_serves_on_when_its_agent_has_not_heard_yet_of_its_move_to_another_partition() -> None:
    fake = FakeFleet(["http://127.0.0.1:1"])
    view = view_of(fake)
    (instance,) = view.services[MODEL].ready
    (service, other), whole = fake.fleet().services, wire.FleetClass("ALL", 0, 0, None, 0, None)
    service = msgspec.structs.replace(
        service, partition="whole", classes=[whole], pools=[wire.FleetPool(9, "location-1", "ALL", 1.2)]
    )
    moved = msgspec.structs.replace(fake.fleet(), services=[service, other])
    view.apply(moved, fake.states(), time.monotonic())
    assert view.services[MODEL].ready == [instance]
    gone = msgspec.structs.replace(moved, services=[other])
    view.apply(gone, fake.states(), time.monotonic())
    assert view.ready_instances == 0


def test_instance_that_refused_is_passed_over_unless_it_is_the_last() -> None:
    service = view_of(FakeFleet(["http://127.0.0.1:1", "http://127.0.0.1:2"])).services[MODEL]
    first, second = service.ready
    first.health.failed(now_s=8.0, refused=True)
    assert service.choosable((), now_s=9.0) == [second]
    assert service.choosable((), now_s=11.0) == [first, second]
    assert service.choosable({second.uid}, now_s=9.0) == [first]


def test_failing_instance_is_out_for_longer_each_time_until_it_works() -> None:
    health = Health()
    health.failed(0.0)
    health.failed(0.0)
    assert health.usable(0.0), "now and then an engine may fail"
    health.failed(0.0)
    assert not health.usable(1.9)
    assert health.usable(2.0)
    health.chosen()
    assert not health.usable(2.0), "one request probes, not all"
    health.failed(2.1)
    assert [health.usable(at_s) for at_s in (6.0, 6.1)] == [False, True]
    health.chosen()
    health.unknown()
    assert health.usable(6.2), "its client left: nothing was learned"
    health.worked()
    health.failed(7.0)
    assert health.usable(7.0)
    for _ in range(20):
        health.failed(7.0)
    assert not health.usable(66.9)
    assert health.usable(67.0)


@pytest.mark.parametrize(("gateways", "waiting", "tokens"), [(1, 0, 100), (3, 2, 300)])
def test_other_gateways_are_taken_to_have_sent_alike_since_the_report(gateways: int, waiting: int, tokens: int) -> None:
    fake = FakeFleet(["http://127.0.0.1:1"])
    view = view_of(fake)
    view.gateways = gateways
    view.apply(fake.fleet(), fake.states(), time.monotonic())
    (instance,) = view.services[MODEL].ready
    instance.dispatched(100, stream=True)
    candidate = instance.candidate()
    assert candidate.load == 1 + waiting
    assert candidate.queued_prompt_tokens == tokens
    view.apply(fake.fleet(), fake.states(), time.monotonic())
    assert instance.candidate().load == 1, "the report has them"


async def test_last_snapshot_stays_when_the_source_fails_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    fake, view = FakeFleet(["http://127.0.0.1:1"]), FleetView()
    beat = Repeated("reading", 0.01)
    task = asyncio.create_task(keep_refreshing(Refresher(view, fake), beat))
    await until(lambda: view.ready_instances == 1)
    fake.fails = True
    await asyncio.sleep(0.1)
    assert view.ready_instances == 1
    assert len(caplog.records) == 1
    fake.fails, fake.urls = False, []
    await until(lambda: view.ready_instances == 0)
    task.cancel()


async def test_instances_stay_when_their_agents_key_has_expired_until_their_node_leaves() -> None:
    fake, view = FakeFleet(["http://127.0.0.1:1"]), FleetView()
    refresher = Refresher(view, fake)
    await refresher.refresh()
    fake.states = dict  # type: ignore[method-assign]
    await refresher.refresh()
    assert view.ready_instances == 1
    fake.nodes = []
    await refresher.refresh()
    assert view.ready_instances == 0, "the node has left the fleet"


async def test_silence_is_counted_by_this_hosts_receipt_of_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(redis_tasks, "time", SimpleNamespace(monotonic=lambda: now_s))
    fake, view = FakeFleet(["http://127.0.0.1:1"]), FleetView()
    refresher, checks, said = Refresher(view, fake), HealthChecks(view), fake.states()
    fake.states = lambda: said  # type: ignore[method-assign]
    for now_s, silent in ((1000.0, False), (1004.0, False), (1005.5, True)):
        await refresher.refresh()
        checks.look(now_s)
        (instance,) = view.services[MODEL].ready
        assert instance.silent == silent
    assert (checks.silent, view.not_ready()) == (1, ""), "it stays in rotation"
    said = {"node-1": msgspec.structs.replace(said["node-1"], at_s=said["node-1"].at_s - 3600.0)}
    await refresher.refresh()
    assert not instance.silent, "another report is a new one, whatever its time"


async def test_ready_says_why_when_it_is_not(bench: Bench) -> None:
    async def ready() -> tuple[int, dict[str, object]]:
        async with bench.http.get(bench.url + "/ready") as response:
            return response.status, await response.json()

    status, body = await ready()
    assert (status, body["status"]) == (200, "ready")
    assert set(body) == {"status", "snapshot_age_s"}, "how many instances there are is not for strangers"
    bench.server.fleet.fresh_at_s = time.monotonic() - 3600
    status, body = await ready()
    assert (status, round(float(str(body["snapshot_age_s"])))) == (200, 3600), "it serves by what it heard last"
    bench.fleet.state = "draining"
    bench.publish()
    assert await ready() == (503, {"status": "not ready", "reason": "no instance is ready"})
    bench.server.fleet.fresh_at_s = None
    assert (await ready())[0] == 503
    async with bench.http.get(bench.url + "/live") as response:
        assert response.status == 200
