"""The loop of servers against the database: who goes off, who boots, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
import redis

from core.ports import PermanentError, PowerState, RetryableError, ServerPower
from core.types import Mode
from pools import server_states, wire
from pools.models import Instance, InstanceGpu, Node, Pool, PowerCycle, Service
from pools.server_states import Phase
from scheduler import agents
from scheduler.control import service_policy, sleep_states, turn_context
from scheduler.control.apply import apply
from scheduler.control.snapshot import measured_overheads
from scheduler.models import Decision
from scheduler.power import power_loop, server_view
from telemetry.alerts.alert_rules import rules
from telemetry.alerts.servers import SERVERS
from telemetry.alerts.sources import NODES
from telemetry.forecasts import load_forecasts
from telemetry.forecasts.load_forecasts import LoadForecast
from telemetry.models import ForecastScore
from tests.fakes.house import report, requests_came, start_instance

pytestmark = pytest.mark.django_db
NODE, MODE = "loc1-a100", "A100-80GB/TP4"
IDLE_S = 100.0


@dataclass
class FakePower:
    """A machine that does at once what it is asked for, unless it is `deaf`."""

    on_: bool = True
    deaf: bool = False
    fault: Exception | None = None
    orders: list[str] = field(default_factory=list)

    def on(self) -> None:
        self._take("on")

    def off(self, force: bool = False) -> None:
        self._take("force" if force else "off")

    def state(self) -> PowerState | None:
        if isinstance(self.fault, RetryableError):
            raise self.fault
        return "on" if self.on_ else "off"

    def _take(self, order: str) -> None:
        self.orders.append(order)
        if self.fault is not None:
            raise self.fault
        if not self.deaf or order == "force":
            self.on_ = order == "on"


@dataclass
class Bench:
    """The demo's fleet, of which one node has a power port."""

    service: Service
    client: redis.Redis
    power: FakePower
    at: datetime

    def look(self, after_s: float = 0.0, heard: bool | None = None) -> None:
        """Takes a turn later. `heard`: the node's agent reports; None: if the machine has power."""
        self.at += timedelta(seconds=after_s)
        for node in Node.objects.all():
            self.client.delete(wire.agent_key(node.name))
            if node.name != NODE or (self.power.on_ if heard is None else heard):
                report(self.client, node.name, at=self.at)
        power_loop.look(self.at, self.ports)

    def ports(self, node: Node) -> ServerPower:
        assert node.name == NODE
        return self.power

    @property
    def node(self) -> Node:
        return Node.objects.get(name=NODE)

    def phase(self) -> Phase:
        return server_states.of()[NODE].phase

    def want(self, count: int) -> None:
        pool = self.pool
        pool.workers = {MODE: count} if count else {}
        pool.save(update_fields=["workers"])
        apply.apply_placement(self.service, agents.reporting(self.client, self.at), {})

    @property
    def pool(self) -> Pool:
        found = self.service.pools.filter(
            site__name="location-1", request_class__partition=self.service.partition
        ).last()
        assert found is not None
        return found


@pytest.fixture
def bench(demo_rows: None, redis_client: redis.Redis, now: datetime) -> Bench:
    service = Service.objects.get()
    service_policy.change(service, "greenserve", {"servers": "power_off", "tuning": {"servers": {"idle_s": IDLE_S}}})
    node = Node.objects.get(name=NODE)
    node.power_port = "simulated"
    node.boot_s = 200.0
    node.save()
    for other in Node.objects.exclude(name=NODE):
        other.schedulable = False
        other.save()
    at = now - timedelta(hours=1)
    last = start_instance(service.pools.all()[0], node, 4, state="stopped")
    InstanceGpu.objects.update(released_at=at)
    Instance.objects.filter(pk=last.pk).update(desired="stopped", stopped_at=at)
    service.refresh_from_db()
    return Bench(service, redis_client, FakePower(), at)


def test_idle_server_goes_off_and_is_no_missing_one(bench: Bench) -> None:
    bench.look(IDLE_S - 1.0)
    assert bench.phase() is Phase.ON
    bench.look(2.0)
    assert bench.power.orders == ["off"]
    assert bench.phase() is Phase.GOES_OFF
    bench.look(5.0)
    assert bench.phase() is Phase.OFF
    assert NODE in agents.reporting(bench.client, bench.at), "plans still count with it"
    assert NODE not in agents.heard(bench.client, bench.at)
    decision = Decision.objects.latest("pk")
    assert decision.commands == [{"type": "SwitchServer", "server": NODE, "on": False}]
    assert "no instance for 101 s" in decision.summary
    bench.look(1000.0)
    assert bench.power.orders == ["off"]


def test_server_boots_for_an_instance_and_its_boot_is_measured(bench: Bench) -> None:
    bench.look(IDLE_S)
    bench.look(5.0)
    assert bench.phase() is Phase.OFF
    context = turn_context.resolve(bench.service, bench.at, agents.reporting(bench.client, bench.at))
    mode = Mode.parse(MODE)
    off_s = measured_overheads.starts_s(context, [mode])[mode]
    bench.want(1)
    (instance,) = Instance.objects.exclude(state="stopped")
    assert instance.node == bench.node, "a server that is off is placed on"
    bench.look(5.0, heard=False)
    assert bench.power.orders == ["off", "on"]
    assert bench.phase() is Phase.BOOTS
    assert "is switched on: instances are to run on it, in 200 s (declared)" in Decision.objects.latest("pk").summary
    bench.look(140.0, heard=False)
    assert bench.phase() is Phase.BOOTS
    bench.look(10.0, heard=True)
    own = server_states.of()[NODE]
    assert (own.phase, own.boot_s, own.boot_source) == (Phase.ON, 150.0, "measured")
    context = turn_context.resolve(bench.service, bench.at, agents.reporting(bench.client, bench.at))
    times = {"created_at": bench.at - timedelta(seconds=150), "ready_at": bench.at + timedelta(seconds=30)}
    Instance.objects.filter(pk=instance.pk).update(state="ready", **times)
    InstanceGpu.objects.filter(instance=instance).update(released_at=bench.at)
    assert measured_overheads.starts_s(context, [mode])[mode] == pytest.approx(off_s - 200.0), (
        "a plan added the boot; and that start, with a boot in it, measures none"
    )


@pytest.mark.parametrize("why", ["instance", "policy", "maintenance", "port", "silent"])
def test_server_never_goes_off_when_it_is_needed_or_not_ours_to_switch(bench: Bench, why: str) -> None:
    node, heard = bench.node, None
    if why == "instance":
        start_instance(bench.pool, node, 4)
    elif why == "policy":
        service_policy.change(bench.service, "greenserve", {})
    elif why == "maintenance":
        node.schedulable = False
    elif why == "port":
        node.power_port = "none"
    else:
        heard = False
    node.save()
    bench.look(10 * IDLE_S, heard)
    assert bench.power.orders == []


def test_last_server_stays_on_for_a_service_with_a_floor(bench: Bench) -> None:
    bench.service.min_gpus = 4
    bench.service.save()
    others = Node.objects.filter(cluster__site=bench.node.cluster.site).exclude(name=NODE)
    bench.look(10 * IDLE_S)
    assert bench.power.orders == ["off"], "the site has another one"
    PowerCycle.objects.all().delete()
    bench.power = FakePower()
    for other in others:
        other.gpus.all().delete()
        other.delete()
    bench.look(10 * IDLE_S)
    assert bench.power.orders == []


def test_refusal_is_a_decision_and_the_server_stays_on_for_a_while(bench: Bench) -> None:
    bench.power.fault = PermanentError("the BMC bmc-1: it answered 403")
    bench.look(IDLE_S)
    assert bench.phase() is Phase.ON
    decision = Decision.objects.latest("pk")
    assert decision.reason == "failed"
    assert f"{NODE} could not be switched off: it stays on. the BMC bmc-1: it answered 403" == decision.summary
    bench.look(60.0)
    assert bench.power.orders == ["off"]
    bench.power.fault = None
    bench.look(15 * 60.0)
    assert bench.power.orders == ["off", "off"]
    assert bench.phase() is Phase.GOES_OFF


def test_power_is_cut_when_the_machine_does_not_end(bench: Bench) -> None:
    bench.power.deaf = True
    bench.look(IDLE_S)
    bench.look(200.0)
    assert bench.power.orders == ["off"]
    bench.look(101.0)
    assert bench.power.orders == ["off", "force"]
    bench.look(5.0)
    assert bench.phase() is Phase.OFF
    assert PowerCycle.objects.get().forced


def test_order_to_boot_is_given_again_when_it_was_lost(bench: Bench) -> None:
    bench.look(IDLE_S)
    bench.look(5.0)
    bench.want(1)
    bench.power.deaf = True
    bench.look(5.0)
    bench.look(5.0)
    assert bench.power.orders == ["off", "on", "on"]
    assert not server_states.of()[NODE].late(bench.at + timedelta(seconds=590))
    assert server_states.of()[NODE].late(bench.at + timedelta(seconds=610))
    bench.at += timedelta(seconds=610)
    assert NODE not in agents.reporting(bench.client, bench.at), "plans count with it no more"


def test_bmc_that_is_away_is_a_fault_until_it_answers(bench: Bench) -> None:
    bench.look(IDLE_S)
    bench.look(5.0)
    bench.power.fault = RetryableError("the BMC bmc-1: it did not answer in time")
    bench.look(5.0)
    assert server_states.of()[NODE].fault == "the BMC bmc-1: it did not answer in time"
    assert NODE not in agents.reporting(bench.client, bench.at + timedelta(seconds=60))
    bench.power.fault = None
    bench.look(5.0)
    assert server_states.of()[NODE].fault == ""


def test_instance_that_is_to_drain_ends_at_once_when_its_server_is_off(bench: Bench) -> None:
    bench.look(IDLE_S)
    bench.look(5.0)
    bench.want(1)
    bench.want(0)
    bench.look(5.0)
    assert bench.power.orders == ["off"], "nothing is to run there any more"
    assert not Instance.objects.exclude(state="stopped").exists()
    assert not InstanceGpu.objects.filter(released_at=None).exists()


def test_server_that_somebody_else_switched_on_is_on(bench: Bench) -> None:
    bench.look(IDLE_S)
    bench.look(5.0)
    bench.power.on_ = True
    bench.look(300.0)
    assert bench.phase() is Phase.ON


def test_running_server_is_placed_on_before_one_that_has_to_boot(bench: Bench) -> None:
    other = Node.objects.get(name="loc1-h100")
    bench.look(IDLE_S)
    bench.look(5.0)
    other.gpus.update(gpu_type="A100-80GB")
    other.schedulable = True
    other.save()
    bench.want(1)
    (instance,) = Instance.objects.exclude(state="stopped")
    assert instance.node == other


def test_forecast_keeps_as_many_gpus_on_as_load_could_need(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    place: Callable[..., dict[tuple[str, str], int]] = lambda *given: {("location-1", "A100-80GB"): 1}  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr("scheduler.power.server_view._spare", place)
        bench.look(10 * IDLE_S)
        assert bench.power.orders == []
    bench.look(5.0)
    bench.look(5.0)
    assert bench.phase() is Phase.OFF
    monkeypatch.setattr("scheduler.power.server_view._spare", place)
    bench.look(5.0, heard=False)
    assert bench.power.orders == ["off", "on"]
    assert "1 A100-80GB at location-1 could be needed within 200 s" in Decision.objects.latest("pk").summary


def test_spare_gpus_are_what_the_forecast_adds_and_what_the_largest_sleeper_wakes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expected(service: str, name: str, now: datetime, steps: int) -> LoadForecast:
        rates = (1.0, 6.0, 1.0)[:steps]
        return LoadForecast(service, name, "daily", 0.0, 300.0, 0.9, rates, rates, (ForecastScore(chosen=True),))

    place = ("location-1", "A100-80GB")
    monkeypatch.setattr(load_forecasts, "expected", expected)
    pool = bench.pool
    pool.workers = {MODE: 1}
    pool.save()
    requests_came(bench.at, count=300, over_s=100.0)  # 3 a second
    assert server_view._spare([bench.service], 300.0, bench.at) == {place: 4}, "twice as much may come"
    service_policy.change(bench.service, "greenserve", {"sleep": "stop"})
    bench.service.refresh_from_db()
    assert sleep_states.of(bench.service).asleep
    assert server_view._spare([bench.service], 300.0, bench.at) == {place: 4}, "it wakes on them"
    pool.workers = {}
    pool.save()
    assert server_view._spare([bench.service], 300.0, bench.at) == {}


# -- what is said of it ------------------------------------------------------------------------------


def alerts(bench: Bench) -> dict[tuple[str, str], tuple[str, str]]:
    """Returns the alerts that fire on the node now, with their words and their remedy."""
    known = rules(300.0)
    found = [reading for source in (NODES, SERVERS) for reading in source.read(bench.at, known)]
    firing = [own for own in found if own.subject == NODE and (own.value or 0.0) >= known[own.rule].threshold]
    return {(own.rule, own.subject): (own.summary, own.step or known[own.rule].step) for own in firing}


def test_server_that_is_off_by_plan_raises_no_alert_and_one_that_does_not_boot_does(bench: Bench) -> None:
    bench.look(IDLE_S)
    bench.look(5.0)
    bench.look(600.0)
    assert alerts(bench) == {}
    bench.want(1)
    bench.look(5.0, heard=False)
    bench.look(599.0, heard=False)
    assert alerts(bench) == {}
    bench.look(5.0, heard=False)
    ((words, remedy),) = alerts(bench).values()
    assert words == f"Server {NODE} was to boot within 200 s (declared), and its agent is silent"
    assert remedy.startswith("Look at its console")
    bench.look(5.0, heard=True)
    assert alerts(bench) == {}


@pytest.mark.parametrize("goes", [True, False])
def test_port_that_fails_raises_an_alert_until_it_does_as_it_is_asked(bench: Bench, goes: bool) -> None:
    if goes:
        bench.look(IDLE_S)
        bench.look(5.0)
    bench.power.fault = RetryableError("it did not answer in time") if goes else PermanentError("it answered 403")
    bench.look(IDLE_S, heard=not goes)
    ((words, remedy),) = alerts(bench).values()
    assert words.endswith("it did not answer in time" if goes else "stays on: it answered 403")
    assert "docs/servers.md" in remedy
    bench.power.fault = None
    bench.look(16 * 60.0)
    bench.look(5.0)
    assert alerts(bench) == {}
