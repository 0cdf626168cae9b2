"""The agent's tick on fakes: what it does to the node, what it reports, and how it bears faults."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from core.engine import gpu_types
from core.engine.gpu_types import SHIPPED
from core.ports import LONGEST_LEASE_S, HostReading, RetryableError
from pools.agent.batch_outbox import LIMIT, Outbox
from pools.agent.devices.host.host_energy import HostEnergy
from pools.agent.loop import AgentLoop
from pools.agent.redis_link import BadDesired, LinkError
from pools.wire import AgentState, InstanceState
from tests.fakes.host_meters import FakeHostMeter
from tests.fakes.node import (
    FakeEngineMetrics,
    FakeFrequencyActuator,
    FakeGpuMeter,
    FakeInstanceRuntime,
    FakeLink,
    desired_instance,
    desired_node,
    engine_reading,
)


class Bench:
    def __init__(self, *gpus: str) -> None:
        self.meter = FakeGpuMeter(gpus or ("G0", "G1"))
        self.actuator = FakeFrequencyActuator()
        self.runtime = FakeInstanceRuntime()
        self.metrics = FakeEngineMetrics()
        self.link = FakeLink()
        self.loop = AgentLoop(
            "n1",
            "boot-1",
            meter=self.meter,
            actuator=self.actuator,
            runtime=self.runtime,
            metrics=self.metrics,
            link=self.link,
        )
        self.now_s = 1000.0

    def tick(self) -> AgentState:
        self.now_s += 1.0
        return self.loop.tick(self.now_s)

    def serve(self, uid: str = "a", gpus: tuple[str, ...] = ("G0",)) -> None:
        """Brings an instance to ready."""
        self.link.desired_node = desired_node(desired_instance(uid, gpus))
        self.tick()
        self.runtime.become(uid, "ready")


def only(state: AgentState) -> InstanceState:
    (instance,) = state.instances
    return instance


def test_instance_is_reported_from_start_to_ready_when_it_is_wanted() -> None:
    bench = Bench()
    bench.link.desired_node = desired_node(desired_instance("a", ["G0", "G1"]), version=5)
    state = bench.tick()
    assert (state.node, state.boot, state.desired_version, state.error) == ("n1", "boot-1", 5, "")
    assert (only(state).state, only(state).tp, only(state).gpu_type) == ("starting", 2, "A100-80GB")
    bench.runtime.become("a", "ready")
    bench.metrics.readings["a"] = engine_reading(running=2, waiting=1, kv_usage=0.4, ttft_s=0.3, tpot_s=0.04)
    instance = only(bench.tick())
    assert (instance.state, instance.pool_id, instance.url) == ("ready", 7, "http://127.0.0.1:1")
    assert (instance.running, instance.waiting, instance.kv_usage) == (2, 1, 0.4)
    assert (instance.ttft_s, instance.tpot_s, instance.power_w) == (0.3, 0.04, 160.0)


def test_rows_say_what_each_gpu_was_doing_when_one_of_two_is_held() -> None:
    bench = Bench("G0", "G1")
    bench.serve()
    bench.metrics.readings["a"] = engine_reading(running=3, prompt_tokens_total=10.0, generation_tokens_total=4.0)
    bench.tick()
    batch = bench.link.batches[-1]
    held, free = batch.gpus.unpack()
    assert (held.instance_uid, held.instance_state, held.running, held.energy_j) == ("a", "ready", 3, 5000.0)
    assert (free.instance_uid, free.instance_state, free.running) == (None, None, None)
    (row,) = batch.instances
    assert (row.instance_uid, row.state, row.running, row.prompt_tokens_total) == ("a", "ready", 3, 10.0)


def test_batches_and_heartbeat_go_out_each_tick_when_redis_is_there() -> None:
    bench = Bench()
    for _ in range(5):
        bench.tick()
    assert [(batch.agent, batch.boot, batch.seq) for batch in bench.link.batches] == [
        ("n1", "boot-1", seq) for seq in range(1, 6)
    ]
    assert {heartbeat.process for heartbeat in bench.link.heartbeats} == {"node.n1"}
    assert bench.link.heartbeats[-1].at_s == bench.now_s


def test_clock_decisions_are_in_the_batch_when_the_clock_loop_decides() -> None:
    bench = Bench()
    bench.serve()
    bench.tick()
    (decision,) = bench.link.batches[-1].clocks
    assert (decision.instance_uid, decision.reason, decision.to_mhz) == ("a", "slack", 1310.0)
    assert bench.actuator.calls[-1] == ("lock", ("G0",), 1310.0, LONGEST_LEASE_S)


def test_sample_has_the_mean_clock_since_the_one_before_when_the_rule_is_faster() -> None:
    """A decision each half second: a tick reads the clock of the later one."""
    bench = Bench()
    bench.serve()
    bench.link.desired_node = desired_node(desired_instance("a", ("G0",)), version=2, period_s=0.5)
    bench.tick()
    bench.loop.glance(bench.now_s + 0.5)
    assert [call[2] for call in bench.actuator.calls] == [1310.0, 1210.0]
    read_mhz = only(bench.tick()).sm_clock_mhz
    (row,) = bench.link.batches[-1].instances
    assert read_mhz is not None
    assert row.sm_clock_mhz == pytest.approx(read_mhz * 1260.0 / 1210.0)


def test_pool_changes_without_a_restart_when_an_instance_is_reassigned() -> None:
    bench = Bench()
    bench.serve()
    reassigned = desired_instance("a")
    bench.link.desired_node = desired_node(type(reassigned)(**{**_fields(reassigned), "pool_id": 99}), version=2)
    state = bench.tick()
    assert only(state).pool_id == 99
    assert bench.runtime.calls == [("start", "a")]


def _fields(message: object) -> dict[str, object]:
    return {name: getattr(message, name) for name in message.__struct_fields__}  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", [LinkError("Redis: gone"), BadDesired("no JSON"), None])
def test_what_runs_is_kept_and_held_when_the_desired_state_cannot_be_read(fault: Exception | None) -> None:
    bench = Bench()
    bench.serve()
    bench.tick()
    bench.link.desired_node = None
    bench.link.desired_error = fault
    locks = len(bench.actuator.calls)
    state = bench.tick()
    assert only(state).state == "ready"
    assert bench.runtime.calls == [("start", "a")]
    # Without Redis the lease is left to lapse; a desired state that makes no sense does not stop the clock loop.
    assert len(bench.actuator.calls) == locks + (not isinstance(fault, LinkError))


def test_nothing_is_stopped_when_no_desired_state_was_ever_read() -> None:
    bench = Bench()
    bench.serve()
    fresh = Bench()
    fresh.runtime.statuses = bench.runtime.statuses
    state = fresh.tick()
    assert fresh.runtime.calls == []
    assert "no desired state yet" in state.error
    assert fresh.link.batches[-1].gpus.unpack()[0].instance_uid == "a"


def test_samples_are_kept_and_sent_in_order_when_redis_comes_back() -> None:
    bench = Bench()
    bench.tick()
    bench.link.send_error = LinkError("Redis: gone")
    for _ in range(20):
        bench.tick()
    bench.link.desired_error = LinkError("Redis: gone")
    sends = bench.link.sends
    for _ in range(20):
        bench.tick()
    assert bench.link.sends == sends  # one time-out a tick is enough
    bench.link.desired_error = bench.link.send_error = None
    bench.tick()
    assert [batch.seq for batch in bench.link.batches] == list(range(1, 43))
    assert bench.link.states[-1].error == "no desired state yet; what runs is kept"


def test_loss_is_said_when_redis_was_away_for_too_long() -> None:
    bench = Bench()
    bench.link.send_error = LinkError("Redis: gone")
    for _ in range(LIMIT + 7):
        bench.tick()
    bench.link.send_error = None
    state = bench.tick()
    assert "8 batches of samples were dropped before they could be sent" in state.error
    for _ in range(20):
        bench.tick()
    assert [batch.seq for batch in bench.link.batches] == list(range(9, LIMIT + 29))


def test_batches_wait_in_order_when_the_stream_is_full(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.link.room = 3
    for _ in range(12):
        bench.tick()
    assert bench.link.offered[-8:] == [1] * 8, "it asks with one whether there is room"
    assert len([record for record in caplog.records if "the stream is full" in record.message]) == 1
    bench.link.room = 10_000
    for _ in range(3):
        bench.tick()
    assert [batch.seq for batch in bench.link.batches] == list(range(1, 16))
    assert bench.link.states[-1].error == "no desired state yet; what runs is kept"


def test_instances_are_failed_not_gone_when_the_runtime_does_not_answer() -> None:
    bench = Bench("G0", "G1")
    bench.serve()
    bench.link.desired_node = desired_node(desired_instance("a"), desired_instance("b", ["G1"], "draining"))
    bench.runtime.statuses["b"] = type(bench.runtime.statuses["a"])("b", "draining", "http://x:1", ("G1",), 0.0)
    bench.tick()
    bench.runtime.list_error = RetryableError("refused")
    bench.meter.error = RetryableError("refused")
    calls = list(bench.runtime.calls)
    state = [bench.tick() for _ in range(5)][-1]
    assert [(i.uid, i.state, i.url, i.power_w) for i in state.instances] == [
        ("a", "failed", None, None),
        ("b", "draining", None, None),
    ]
    assert "cannot list the instances" in state.error
    assert "cannot read the GPUs" in state.error
    assert bench.runtime.calls == calls


def test_instances_stay_ready_when_the_runtime_does_not_answer_in_time_now_and_then() -> None:
    """Gateways would refuse what comes meanwhile, and plans drain what serves until others do."""
    bench = Bench()
    bench.serve()
    ready = only(bench.tick())
    for _ in range(2):
        bench.runtime.list_error = RetryableError("timed out")
        for _ in range(4):
            known = only(bench.tick())
            assert (known.state, known.url, known.running) == ("ready", ready.url, None)
        bench.runtime.list_error = None
        assert only(bench.tick()).running == ready.running


def test_failed_start_is_reported_with_its_reason_when_the_runtime_refuses() -> None:
    bench = Bench()
    bench.runtime.start_errors = [RetryableError("G0 is allocated to instance z")]
    bench.link.desired_node = desired_node(desired_instance("a"))
    instance = only(bench.tick())
    assert (instance.state, instance.detail) == ("starting", "G0 is allocated to instance z (attempt 1)")


def test_engine_is_reported_unknown_when_it_cannot_be_measured() -> None:
    bench = Bench()
    bench.serve()
    bench.metrics.error = RetryableError("timed out")
    state = bench.tick()
    assert (only(state).state, only(state).running) == ("ready", None)
    assert "cannot measure instance a: timed out" in state.error


def test_missing_metrics_are_shown_when_the_engine_lacks_some() -> None:
    bench = Bench()
    bench.serve()
    bench.metrics.readings["a"] = engine_reading(kv_usage=None, missing=("vllm:kv_cache_usage_perc",))
    assert only(bench.tick()).detail == "the engine lacks the metrics vllm:kv_cache_usage_perc"


def test_drained_instance_disappears_when_it_has_ended() -> None:
    bench = Bench()
    bench.serve()
    bench.link.desired_node = desired_node(desired_instance("a", state="draining"))
    assert only(bench.tick()).state == "draining"
    bench.runtime.statuses.clear()
    assert bench.tick().instances == []


def test_empty_batch_takes_no_number_when_nothing_was_read() -> None:
    outbox = Outbox("n1", "b")
    outbox.add(1.0, [], [], [])
    assert outbox.pending(10) == []


def test_gpu_of_two_engines_is_the_ones_that_serves_while_the_other_comes_up_beside_it() -> None:
    bench = Bench()
    bench.serve("old")
    shadow = desired_instance("new", ["G0"], shadow_of="old")
    bench.link.desired_node = desired_node(desired_instance("old", ["G0"]), shadow)

    def holder() -> tuple[object, object]:
        bench.tick()
        row = next(row for row in bench.link.batches[-1].gpus.unpack() if row.gpu_uuid == "G0")
        return row.instance_uid, row.instance_state

    holder()
    assert holder() == ("old", "ready")
    bench.runtime.become("new", "ready")
    bench.link.desired_node = desired_node(desired_instance("old", ["G0"], state="draining"), shadow)
    for _ in range(4):
        holder()
    assert bench.runtime.statuses["old"].state == "draining"
    assert holder() == ("new", "ready")
    clocks = {call[1] for call in bench.actuator.calls}
    assert clocks <= {("G0",)}


def test_host_is_in_the_batch_and_its_notices_in_the_state_when_the_node_has_meters() -> None:
    bench = Bench()
    meter = FakeHostMeter((HostReading("package-0", "zeusd", 5.0, 42.0),), said=("by zeusd",))
    bench.loop = AgentLoop(
        "n1",
        "boot-1",
        meter=bench.meter,
        actuator=bench.actuator,
        runtime=bench.runtime,
        metrics=bench.metrics,
        link=bench.link,
        host=HostEnergy((meter,)),
    )
    state = bench.tick()
    (row,) = bench.link.batches[-1].hosts
    assert (row.domain, row.method, row.energy_j, row.power_w) == ("package-0", "zeusd", 42.0, None)
    assert state.notices == ["by zeusd"]
    meter.answers = RetryableError("away")
    assert "cannot read the host's energy: away" in bench.tick().error
    assert bench.link.batches[-1].hosts == []


def test_gpu_types_of_its_node_are_known_when_its_desired_state_has_them() -> None:
    bench, own = Bench(), replace(SHIPPED["L40S-48GB"], name="L40S-lab")
    try:
        bench.link.desired_node = msgspec.structs.replace(desired_node(), gpu_types=[own])
        bench.tick()
        assert gpu_types.declared() == (own,)
        bench.link.desired_node = None  # it has gone: what was known stays
        bench.tick()
        assert gpu_types.declared() == (own,)
        bench.link.desired_node = desired_node()
        bench.tick()
        assert gpu_types.declared() == ()
    finally:
        gpu_types.declare(())


def test_drains_and_restarts_go_on_when_the_clock_is_set_back_by_two_hours() -> None:
    bench = Bench()
    bench.now_s = 10_000.0
    bench.serve("a")
    bench.link.desired_node = desired_node(
        desired_instance("a", ("G0",), state="draining"), desired_instance("b", ("G1",))
    )
    bench.runtime.start_errors = [RetryableError("GPU is allocated")]
    bench.tick()
    bench.now_s -= 7_200.0
    calls = len(bench.runtime.calls)
    for _ in range(5):
        bench.tick()
    assert bench.runtime.calls[calls:] == [("start", "b"), ("drain", "a")]


def test_each_engine_on_a_slice_has_its_own_say_on_the_clock_and_is_named_by_its_slice() -> None:
    bench = Bench()
    bench.serve("one")
    pair = [desired_instance(uid, ["G0"], gpu_slices=2) for uid in ("one", "two")]
    bench.link.desired_node = desired_node(*pair)
    bench.tick()
    bench.runtime.become("two", "ready")
    states = [bench.tick() for _ in range(3)][-1].instances
    assert [(state.uid, state.gpu_type, state.tp) for state in states] == [
        ("one", "A100-80GB/2", 1),
        ("two", "A100-80GB/2", 1),
    ]
    decided = {row.instance_uid for made in bench.link.batches for row in made.clocks}
    assert decided == {"one", "two"}
