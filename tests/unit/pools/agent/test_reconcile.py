"""Reconciliation of a node with its desired state, on a fake runtime."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from core.ports import EngineLimits, EngineOptions, PermanentError, RetryableError
from pools import wire
from pools.agent.reconcile import LONGEST_BACKOFF_S, NOTICE_S, Reconciler, spec_of
from tests.fakes.node import FakeEngineControl, FakeInstanceRuntime, desired_instance


class Bench:
    def __init__(self) -> None:
        self.runtime = FakeInstanceRuntime()
        self.control = FakeEngineControl()
        self.reconciler = Reconciler(self.runtime, self.control)
        self.now_s = 0.0

    def act(self, *desired: wire.DesiredInstance, after_s: float = 1.0, busy: frozenset[str] = frozenset()) -> bool:
        self.now_s += after_s
        return self.reconciler.act(self.now_s, desired, self.runtime.list(), busy)


def test_missing_instance_is_started_once_when_it_is_wanted() -> None:
    bench = Bench()
    assert bench.act(desired_instance("a"))
    assert not bench.act(desired_instance("a"))
    bench.runtime.become("a", "ready")
    assert not bench.act(desired_instance("a"))
    assert bench.runtime.calls == [("start", "a")]


def test_instance_is_stopped_when_it_is_not_listed() -> None:
    bench = Bench()
    bench.act(desired_instance("a"))
    bench.act()
    assert bench.runtime.calls == [("start", "a"), ("stop", "a")]


def test_instance_is_drained_once_and_never_started_again_when_it_is_to_drain() -> None:
    bench = Bench()
    bench.act(desired_instance("a"))
    bench.runtime.become("a", "ready")
    draining = desired_instance("a", state="draining")
    for _ in range(4):
        bench.act(draining)
    bench.runtime.stop("a")  # its last request has ended
    bench.act(draining)
    assert bench.runtime.calls == [("start", "a"), ("drain", "a"), ("stop", "a")]


def test_engine_hears_of_its_drain_after_gateways_did_when_it_serves() -> None:
    bench = Bench()
    bench.act(desired_instance("a"))
    bench.runtime.become("a", "ready")
    draining = desired_instance("a", state="draining")
    assert not bench.act(draining)
    assert not bench.act(desired_instance("a"))  # called off: the next notice begins anew
    assert not bench.act(draining, after_s=NOTICE_S)
    assert not bench.act(draining, after_s=0.9 * NOTICE_S)
    assert bench.act(draining, after_s=0.2 * NOTICE_S)
    assert bench.runtime.calls == [("start", "a"), ("drain", "a")]


def test_engine_drains_at_once_when_it_does_not_serve_yet() -> None:
    bench = Bench()
    bench.act(desired_instance("a"))
    assert bench.act(desired_instance("a", state="draining"))
    assert bench.runtime.calls == [("start", "a"), ("drain", "a")]


def test_endings_come_before_starts_when_gpus_change_hands() -> None:
    bench = Bench()
    bench.act(desired_instance("old"))
    bench.act(desired_instance("new"))
    assert bench.runtime.calls == [("start", "old"), ("stop", "old"), ("start", "new")]


def test_start_backs_off_when_it_keeps_failing() -> None:
    bench = Bench()
    bench.runtime.start_errors = [RetryableError("GPU is allocated")] * 100
    starts_s = []
    for _ in range(130):
        before = len(bench.runtime.calls)
        bench.act(desired_instance("a"))
        if len(bench.runtime.calls) > before:
            starts_s.append(bench.now_s)
    gaps = [later - earlier for earlier, later in pairwise(starts_s)]
    assert gaps[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert set(gaps[5:]) == {LONGEST_BACKOFF_S}
    trouble = bench.reconciler.trouble("a")
    assert trouble is not None
    assert (trouble.state, trouble.detail) == ("starting", "GPU is allocated")


def test_trouble_is_forgotten_when_the_engine_becomes_ready() -> None:
    bench = Bench()
    bench.runtime.start_errors = [PermanentError("no such model")]
    bench.act(desired_instance("a"))
    trouble = bench.reconciler.trouble("a")
    assert trouble is not None
    assert trouble.state == "failed"
    bench.act(desired_instance("a"), after_s=1.1)
    assert bench.reconciler.trouble("a") is not None  # it is starting, not yet well
    bench.runtime.become("a", "ready")
    bench.act(desired_instance("a"))
    assert bench.reconciler.trouble("a") is None


def test_failed_engine_is_removed_and_started_again_when_its_wait_is_over() -> None:
    bench = Bench()
    bench.act(desired_instance("a"))
    for wait_s in (1.0, 2.0, 4.0):
        bench.runtime.become("a", "failed", "out of memory")
        bench.runtime.calls.clear()
        assert not bench.act(desired_instance("a"))
        assert not bench.act(desired_instance("a"), after_s=wait_s * 0.9)
        assert bench.act(desired_instance("a"), after_s=wait_s * 0.2)
        assert bench.runtime.calls == [("stop", "a"), ("start", "a")]


def test_failed_engine_is_removed_when_it_was_to_drain_anyway() -> None:
    bench = Bench()
    bench.act(desired_instance("a"))
    bench.runtime.become("a", "failed")
    bench.act(desired_instance("a", state="draining"))
    assert bench.runtime.calls[-1] == ("stop", "a")


def test_others_are_served_when_one_cannot_be_stopped() -> None:
    bench = Bench()
    bench.act(desired_instance("stuck"), desired_instance("other", ["G1"]))

    def stop(uid: str) -> None:
        raise RetryableError("busy")

    bench.runtime.stop = stop  # type: ignore[method-assign]
    bench.act(desired_instance("new", ["G2"]))
    assert bench.reconciler.errors == [f"cannot stop instance {uid}: busy" for uid in ("stuck", "other")]
    assert bench.runtime.calls[-1] == ("start", "new")


def test_engine_sleeps_and_wakes_when_the_desired_state_says_so() -> None:
    bench = Bench()
    bench.act(desired_instance("a", state="sleeping"))
    assert bench.runtime.calls == [("start", "a")]  # it must be up first
    bench.act(desired_instance("a", state="sleeping"))
    bench.runtime.become("a", "ready")
    assert not bench.act(desired_instance("a", state="sleeping"))  # gateways are to hear of it first
    bench.now_s += NOTICE_S
    assert not bench.act(
        desired_instance("a", state="sleeping"), busy=frozenset({"a"})
    )  # its requests would be cut off
    assert bench.act(desired_instance("a", state="sleeping"))
    bench.runtime.become("a", "sleeping")
    assert not bench.act(desired_instance("a", state="sleeping"))
    assert bench.act(desired_instance("a"))
    bench.runtime.become("a", "starting")  # it wakes
    assert not bench.act(desired_instance("a"))
    assert bench.control.calls == [("sleep", "a", 1), ("wake", "a")]
    bench.runtime.become("a", "sleeping")
    bench.act(desired_instance("a", state="draining"))
    assert bench.runtime.calls[-1] == ("drain", "a")


def test_engine_stays_loaded_and_is_asked_once_when_it_cannot_sleep() -> None:
    bench = Bench()
    bench.act(desired_instance("a", state="sleeping"))
    bench.runtime.become("a", "ready")
    bench.control.error = PermanentError("the agent needs --vllm-sleep")
    for _ in range(5):
        assert not bench.act(desired_instance("a", state="sleeping"), after_s=NOTICE_S)
    assert bench.control.calls == []
    assert bench.reconciler.errors == []
    bench.control.error = None
    bench.act(desired_instance("a"))  # it serves again, and is asked again the next time
    assert not bench.act(desired_instance("a", state="sleeping"), after_s=NOTICE_S)
    assert bench.act(desired_instance("a", state="sleeping"), after_s=NOTICE_S)


def test_limits_are_changed_once_when_they_differ_from_those_in_force() -> None:
    bench = Bench()
    limits = EngineLimits(512, 64, 0.05)
    bench.act(desired_instance("a"))
    bench.runtime.become("a", "ready")
    assert bench.act(desired_instance("a", engine_limits=limits))
    assert bench.control.calls == [("tune", "a", limits)]
    bench.runtime.statuses["a"] = replace(bench.runtime.statuses["a"], limits=limits)
    assert not bench.act(desired_instance("a", engine_limits=limits))
    bench.runtime.statuses["a"] = replace(bench.runtime.statuses["a"], limits=None)  # not known: left alone
    assert not bench.act(desired_instance("a", engine_limits=limits))


def test_fault_is_reported_and_tried_again_when_an_engine_cannot_be_changed_now() -> None:
    bench = Bench()
    bench.act(desired_instance("a"))
    bench.runtime.become("a", "ready")
    bench.control.error = RetryableError("it wakes")
    bench.act(desired_instance("a", state="sleeping"))
    assert not bench.act(desired_instance("a", state="sleeping"), after_s=NOTICE_S)
    assert bench.reconciler.errors == ["cannot put to sleep instance a: it wakes"]
    bench.control.error = None
    assert bench.act(desired_instance("a", state="sleeping"))


def test_engine_is_asked_once_for_limits_that_it_cannot_take_up() -> None:
    bench = Bench()
    bench.act(desired_instance("a"))
    bench.runtime.become("a", "ready")
    bench.runtime.statuses["a"] = replace(bench.runtime.statuses["a"], limits=EngineLimits())
    bench.control.error = PermanentError("fixed when it starts")
    for chunk_tokens, asked in ((512, 1), (512, 1), (256, 2), (256, 2)):
        wanted = desired_instance("a", engine_limits=EngineLimits(chunk_tokens=chunk_tokens))
        assert not bench.act(wanted)
        assert bench.control.asked == asked
        assert not bench.reconciler.errors


def test_node_says_so_when_it_cannot_change_what_runs() -> None:
    runtime = FakeInstanceRuntime()
    reconciler = Reconciler(runtime)
    reconciler.act(0.0, [desired_instance("a")], runtime.list())
    runtime.become("a", "ready")
    runtime.statuses["a"] = replace(runtime.statuses["a"], limits=EngineLimits())
    assert not reconciler.act(1.0, [desired_instance("a", engine_limits=EngineLimits(512, 64))], runtime.list())
    assert "cannot change how instance a works" in reconciler.errors[0]


def test_options_limits_and_shadow_go_into_the_start() -> None:
    options, limits = EngineOptions("priority", preempt_for_waiting=True), EngineLimits(1024)
    sent = wire.encode(desired_instance("b", options=options, engine_limits=limits, shadow_of="a"))
    spec = spec_of(wire.decode(sent, wire.DesiredInstance))
    assert (spec.options, spec.limits, spec.shadow_of) == (options, limits, "a")


def test_engine_goes_over_to_its_gpus_once_when_others_are_wanted() -> None:
    bench = Bench()
    bench.act(desired_instance("a"))
    bench.runtime.become("a", "ready")
    here = bench.runtime.statuses["a"] = replace(bench.runtime.statuses["a"], reshards=True)
    wanted = desired_instance("a", gpus=("G0", "G1"))
    bench.control.error = RetryableError("G1 is allocated to another instance")
    assert not bench.act(wanted)
    assert bench.reconciler.errors == ["cannot take instance a to other GPUs: G1 is allocated to another instance"]
    bench.control.error = None
    assert bench.act(wanted)
    bench.runtime.statuses["a"] = replace(here, taking=("G1", "G0"))
    assert not bench.act(wanted)
    bench.runtime.statuses["a"] = replace(here, gpu_uuids=("G1", "G0"))
    assert not bench.act(wanted)
    assert bench.control.calls == [("reshard", "a", ("G0", "G1"))]
    assert bench.runtime.calls == [("start", "a")]


def test_engine_ends_and_starts_on_its_gpus_when_it_cannot_go_over_to_them() -> None:
    bench = Bench()
    bench.act(desired_instance("a"))
    bench.runtime.become("a", "ready")
    wanted = desired_instance("a", gpus=("G0", "G1"))
    assert bench.act(wanted)
    assert bench.control.calls == []
    bench.runtime.statuses.pop("a")  # its last request has ended
    bench.act(wanted)
    assert bench.runtime.calls == [("start", "a"), ("drain", "a"), ("start", "a")]
    assert bench.runtime.statuses["a"].gpu_uuids == ("G0", "G1")


def test_engine_starts_on_its_new_gpus_when_it_was_lost_on_the_way() -> None:
    bench = Bench()
    bench.act(desired_instance("a"))
    bench.runtime.statuses.pop("a")
    bench.act(desired_instance("a", gpus=("G0", "G1")))
    assert bench.runtime.statuses["a"].gpu_uuids == ("G0", "G1")
