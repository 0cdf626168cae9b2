"""An agent and its node, as they run: what it does with what is desired."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
import redis
from django.conf import settings

from core.ports import EngineLimits
from pools import wire
from tests.fakes.agent import NODE, PERIOD_S, Bench, complete, desired


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Of all tests here that leave its processes alive."""
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)
    running = Bench(tmp_path_factory.mktemp("node"), client, settings.CELERY_BROKER_URL)
    yield running
    running.close()
    client.close()


@pytest.fixture
def bench(lasting: Bench, redis_client: redis.Redis) -> Bench:
    lasting.begin_anew()
    return lasting


def test_instance_serves_and_is_measured_when_it_is_desired(bench: Bench) -> None:
    bench.want(desired("a", [0]))
    url = str(bench.ready("a").url)
    assert json.loads(complete(url, stream=False))["usage"]["completion_tokens"] == 20
    assert complete(url, stream=True).count(b"data: {") == 20
    bench.wait(lambda: (bench.batches()[-1].instances[-1].generation_tokens_total or 0) >= 40, "40 measured tokens")
    batches = bench.batches()
    assert [batch.seq for batch in batches] == list(range(batches[0].seq, batches[-1].seq + 1))
    assert {(batch.agent, batch.boot) for batch in batches} == {(NODE, batches[0].boot)}
    for uuid in (bench.node.uuid(0), bench.node.uuid(1)):
        energies = [row.energy_j for batch in batches for row in batch.gpus.unpack() if row.gpu_uuid == uuid]
        assert len(energies) == len(batches)
        assert all(earlier < later for earlier, later in pairwise(energies))  # type: ignore[operator]
    held = [row.instance_uid for row in batches[-1].gpus.unpack()]
    assert held == ["a", None]
    assert any(row.ttft_s is not None and row.tpot_s is not None for batch in batches for row in batch.instances)


def test_clocks_step_down_and_decisions_are_reported_when_the_engine_idles(bench: Bench) -> None:
    bench.want(desired("a", [0]), clock=wire.ClockPolicy(decrease_mhz=300.0, period_s=PERIOD_S))
    top_mhz = bench.ready("a").max_mhz
    bench.wait(lambda: (i := bench.instance("a")) and (i.sm_clock_mhz or top_mhz) <= 510.0, "lowered clock")
    decisions = [row for batch in bench.batches() for row in batch.clocks]
    assert (decisions[0].instance_uid, decisions[0].reason, decisions[0].from_mhz) == ("a", "slack", top_mhz)
    bench.want(desired("a", [0]), clock=wire.ClockPolicy(policy="fixed"))
    bench.wait(lambda: (i := bench.instance("a")) and i.sm_clock_mhz == top_mhz, "top clock")
    assert bench.node.get("/gpus")[1]["sm_clock_mhz"] == top_mhz


@pytest.mark.parametrize("rule_name", ["throttle", "deadline"])
def test_clock_is_what_gateways_ask_for_when_the_rule_is_theirs(bench: Bench, rule_name: str) -> None:
    """Of two gateways the higher counts, while its lease lives; then the other's; then the top clock."""
    rule = wire.ClockPolicy(policy=rule_name, period_s=PERIOD_S)
    bench.want(desired("a", [0], clock=rule), desired("b", [1]))  # the other one keeps the node's rule
    bench.ready("a")

    def ask(gateway: str, mhz: float, lease_s: float) -> None:
        message = wire.ClockRequest("a", gateway, time.time(), mhz, lease_s, "within_limits", "the lowest that will do")
        bench.wait(lambda: bench.redis.publish(wire.clock_channel(NODE), wire.encode(message)), "listener")

    def clock(mhz: float) -> bool:
        return bool(bench.node.get("/gpus")[0]["sm_clock_mhz"] == mhz)

    ask("g1", 900.0, 2.5)
    bench.wait(lambda: clock(900.0), "clock of the first gateway")
    ask("g2", 1200.0, 1.0)
    bench.wait(lambda: clock(1200.0), "clock of the second gateway")
    bench.wait(lambda: clock(900.0), "clock of the first gateway alone")
    bench.wait(lambda: clock(1410.0), "top clock")

    def decisions() -> list[tuple[str, float, float]]:
        rows = [row for batch in bench.batches() for row in batch.clocks if row.instance_uid == "a"]
        return [(row.reason, row.from_mhz, row.to_mhz) for row in rows]

    bench.wait(lambda: decisions() and decisions()[-1][0] == "no_data", "decisions")
    assert decisions() == [
        ("within_limits", 1410.0, 900.0),
        ("within_limits", 900.0, 900.0),  # those asked for after the first one, as one: 1200 and 900
        ("no_data", 900.0, 1410.0),
    ]


def test_clock_follows_the_profile_of_what_is_served_when_the_rule_is_profile(bench: Bench) -> None:
    bench.want(desired("a", [0], clock=wire.ClockPolicy(policy="profile", period_s=PERIOD_S)))
    url = str(bench.ready("a").url)

    def lowered() -> wire.ClockDecision | None:
        complete(url, stream=False)
        rows = [row for batch in bench.batches() for row in batch.clocks]
        return next((row for row in rows if row.reason == "slack"), None)

    row = bench.wait(lowered, "lower clock")
    assert row.to_mhz < row.from_mhz == 1410.0
    assert row.inputs["output_tokens"] == pytest.approx(20.0, rel=0.05)
    bench.wait(lambda: bench.node.get("/gpus")[0]["sm_clock_mhz"] == row.to_mhz, "clock")


def test_instance_is_drained_and_replaced_when_the_desired_state_changes(bench: Bench) -> None:
    bench.want(desired("old", [0]))
    bench.ready("old")
    bench.want(desired("old", [0], "draining"), desired("new", [0]))  # the new one waits for the GPU
    bench.ready("new")
    assert bench.instance("old", "draining") is None
    bench.want()
    bench.wait(lambda: bench.node.get("/instances") == [], "empty node")


def test_two_instances_take_turns_on_a_gpu_when_one_sleeps(bench: Bench) -> None:
    def asleep(uid: str) -> bool:
        return (found := bench.instance(uid, "sleeping")) is not None and found.asleep

    def sampled() -> str | None:
        uid: str | None = bench.batches()[-1].gpus.unpack()[0].instance_uid
        return uid

    bench.want(desired("a", [0]))
    assert not bench.ready("a").asleep
    bench.want(desired("a", [0], "sleeping"), desired("b", [0]))
    bench.wait(lambda: asleep("a"), "that a sleeps")
    bench.ready("b")
    assert bench.wait(lambda: bench.instance("a", "sleeping"), "a").power_w is None, "the GPU's power is b's"
    bench.wait(lambda: sampled() == "b", "samples of b")
    bench.want(desired("a", [0]), desired("b", [0], "sleeping"))
    bench.ready("a")
    assert asleep("b")


def test_instance_sleeps_wakes_and_keeps_other_limits_when_they_are_desired(bench: Bench) -> None:
    bench.want(desired("a", [0]))
    url = bench.ready("a").url
    bench.want(desired("a", [0], "sleeping"))
    bench.wait(lambda: bench.instance("a", "sleeping"), "sleeping instance")

    def asleep() -> tuple[object, ...]:
        row = bench.batches()[-1].gpus.unpack()[0]
        return row.instance_uid, row.instance_state, row.running, row.memory_used_bytes

    bench.wait(lambda: asleep() == ("a", "ready", 0, 0), "samples of its sleep")
    assert bench.batches()[-1].instances[-1].state == "sleeping"
    limits = EngineLimits(512, 16, 0.1)
    bench.want(desired("a", [0], engine_limits=limits))
    assert bench.ready("a").url == url
    bench.wait(lambda: bench.ready("a").engine_limits == limits, "other limits")
    assert complete(str(url), stream=False)


def test_desired_state_that_cannot_be_read_changes_nothing_and_is_reported(bench: Bench) -> None:
    bench.want(desired("a", [0]))
    bench.ready("a")
    bench.redis.set(wire.desired_key(NODE), b'{"node": 1}')
    bench.wait(lambda: (s := bench.state()) and "cannot be read" in s.error, "error in the state")
    bench.redis.delete(wire.desired_key(NODE))
    bench.wait(lambda: (s := bench.state()) and "has gone" in s.error, "other error in the state")
    assert bench.instance("a") is not None
    assert bench.node.ready_url("a")


def test_agent_is_silent_while_its_server_is_off_and_starts_what_it_is_to_run_once_it_has_booted(bench: Bench) -> None:
    bench.want(desired("a", [0]))
    bench.ready("a")
    assert bench.node.send("POST", "/power", {"on": False}) == (200, {"state": "off", "runs": False})
    off_s = time.time() + 2 * PERIOD_S  # a tick that was under way may still report
    time.sleep(5 * PERIOD_S)
    heard = bench.state()
    assert heard is None or heard.at_s < off_s
    assert max(row.at_s for row in bench.batches()[-1].gpus.unpack()) < off_s, "nor are there samples"
    bench.node.send("POST", "/power", {"on": True})
    bench.wait(lambda: (own := bench.state()) and own.at_s > off_s, "agent that reports again")
    bench.ready("a")
