"""Sleep: how a batch is paused, how long waking takes, and what the GPUs draw meanwhile."""

from __future__ import annotations

import pytest

from core.engine.engine_model import engine_model, gpu
from core.engine.overheads import Overheads, cold_start_s, fall_asleep_s, wake_s, weight_bytes
from pools.simnode.engine.engine_transitions import Durations
from pools.simnode.engine.hand_over import Arriving, HandOver, KvLink
from pools.simnode.gpu_group import GpuGroup
from pools.simnode.gpus import SimGpu
from tests.unit.pools.simnode.engine.engine_bench import Bench

MODEL = "Llama3-8B"


def test_all_end_as_aborted_and_the_iteration_in_flight_is_paid_for_when_paused_by_abort() -> None:
    bench = Bench()
    bench.ask("running", 100, 100)
    bench.ask("waiting", 100, 100, at_s=0.01)
    bench.batcher.pause("abort", 0.05)
    assert not bench.batcher.settled
    assert (bench.tokens["running"][-1], bench.tokens["waiting"]) == ((None, "abort"), [(None, "abort")])
    bench.run(0.08)
    assert bench.batcher.settled
    assert bench.batcher.counters.finished["abort"] == 2
    assert bench.gpus.draws[-1][1] == "idle"


def test_those_that_run_end_first_and_those_that_wait_stay_when_paused_by_wait() -> None:
    bench = Bench()
    bench.ask("running", 100, 20)
    bench.run(0.1)
    bench.batcher.pause("wait", 0.1)
    bench.ask("late", 100, 20, at_s=0.11)
    bench.run(5.0)
    assert bench.tokens["running"][-1] == (19, "stop")
    assert bench.tokens["late"] == []
    assert bench.batcher.settled
    bench.batcher.resume(10.0)
    bench.run(20.0)
    assert bench.tokens["late"][-1] == (19, "stop")


def test_those_that_run_are_computed_again_afterwards_when_paused_by_keep() -> None:
    bench = Bench()
    for name in ("first", "second"):
        bench.ask(name, 100, 20)
    bench.run(0.1)
    bench.batcher.pause("keep", 0.1)
    bench.run(0.5)
    assert bench.batcher.settled
    assert bench.batcher.waiting == 2
    begun, second = len(bench.tokens["first"]), list(bench.tokens["second"])
    assert 0 < len(second) < begun < 20
    bench.batcher.forget()
    bench.batcher.resume(10.0)
    bench.run(20.0)
    again = [prefills for _, prefills, _, _ in bench.cost.asked if len(prefills) == 2]
    assert again == [((100 + begun, 0), (100 + len(second), 0))]  # what they had written included
    assert [index for index, _ in bench.tokens["first"]] == list(range(20))


def test_kept_and_coming_caches_are_lost_when_it_sleeps() -> None:
    bench = Bench()
    link = KvLink(1e6)
    bench.ask("kept", 100, 1, finish="length", hand_over=HandOver("r", 1.0, link))
    bench.run(1.0)
    let_go: list[str] = []
    bench.ask("coming", 101, 1, 1.0, arriving=Arriving(100, 100.0, 5.0, None, lambda: let_go.append("there")))
    bench.batcher.pause("wait", 1.0)
    bench.batcher.forget()
    assert let_go == ["there"]
    assert bench.batcher.kv_usage == 0.0
    bench.batcher.resume(2.0)
    bench.run(3.0)
    assert bench.cost.asked[-1][1] == ((101, 0),)  # all of its prompt
    assert bench.tokens["coming"] == [(0, "stop")]


def test_nothing_runs_when_a_request_comes_to_a_sleeping_engine() -> None:
    bench = Bench()
    bench.batcher.pause("abort", 0.0)
    bench.ask("a", 10, 1, at_s=1.0)
    bench.run(100.0)
    assert bench.batcher.waiting == 1
    assert bench.batcher.next_s is None
    bench.batcher.resume(100.0)
    bench.run(101.0)
    assert bench.tokens["a"] == [(0, "stop")]


def test_gpus_draw_what_their_memory_holds_when_weights_come_and_go() -> None:
    model = engine_model(MODEL, "A100-80GB", 2)
    gpus = [SimGpu(f"G{n}", n, gpu("A100-80GB"), 0.0, 0.0) for n in range(2)]
    group = GpuGroup(gpus, model)
    group.allocate("i", 0.0, group.idle)

    def woken(at_s: float) -> None:
        assert group.wake(at_s) == ""
        group.move_weights(at_s)

    a100 = gpu("A100-80GB")
    steps = [
        (0.0, group.move_weights, model.idle_gpu_watts(a100.f_max), False),
        (10.0, group.loaded, model.idle_gpu_watts(a100.f_max), True),
        (20.0, group.sleep, a100.idle_w, None),
        (50.0, woken, model.idle_gpu_watts(a100.f_max), False),
        (60.0, group.loaded, model.idle_gpu_watts(a100.f_max), True),
    ]
    energy_j, before_s = 0.0, 0.0
    for at_s, step, power_w, loaded in steps:
        energy_j += gpus[0].power_w * (at_s - before_s)
        step(at_s)
        before_s = at_s
        assert gpus[0].power_w == pytest.approx(power_w)
        assert (gpus[0].held["i"].loaded if gpus[0].held else None) is loaded
        assert gpus[1].energy_j == pytest.approx(energy_j)
    gpus[0].lock(600.0, 100.0, 65.0)
    assert gpus[0].power_w == pytest.approx(model.idle_gpu_watts(600.0))
    group.sleep(70.0)
    gpus[0].reset(75.0)  # the clock of a GPU with nothing in its memory
    assert gpus[0].power_w == a100.idle_w
    other = GpuGroup(gpus[:1], engine_model(MODEL, "A100-80GB", 1))
    other.allocate("other", 76.0, other.idle)
    assert group.wake(77.0) == "G0 is allocated to instance other"
    assert not gpus[1].held, "it takes all of its GPUs or none"
    other.release(78.0)
    assert group.wake(79.0) == ""
    assert set(gpus[0].held) == set(gpus[1].held) == {"i"}
    group.release(80.0)
    assert not gpus[0].held


@pytest.mark.parametrize(
    ("level", "seconds", "gigabytes"),
    [(1, 0.26, 1.19), (1, 0.82, 8.3), (2, 0.85, 1.19), (2, 2.58, 8.3)],
)
def test_waking_takes_what_was_measured_when_the_model_is_of_that_size(
    level: int, seconds: float, gigabytes: float
) -> None:
    """Published for two models at TP 1; the same bytes of each GPU of another model take as long."""
    tp = weight_bytes("Llama3-70B") / (gigabytes * 1e9)
    assert wake_s(Overheads(), level, "Llama3-70B", tp) == pytest.approx(seconds, rel=0.02)  # type: ignore[arg-type]


def test_waking_is_much_shorter_than_a_cold_start_and_falls_with_tp() -> None:
    known = Overheads()
    for model in (MODEL, "Llama3-70B"):
        assert wake_s(known, 1, model, 8) < wake_s(known, 1, model, 4) < wake_s(known, 2, model, 4)
        assert wake_s(known, 2, model, 4) < cold_start_s(known, model_name=model)
        assert fall_asleep_s(known, 2, model, 4) == 0.0 < fall_asleep_s(known, 1, model, 4)


def test_progress_says_what_is_done_and_how_long_it_takes_when_an_engine_starts() -> None:
    durations = Durations(Overheads(), 10.0, "Llama2-70B", 8)
    start = durations.cold_start(100.0)
    assert start.total_s == pytest.approx(3.3)  # table V: 18 s and 15 s
    assert start.doing(100.0) == "setting up the engine, ready in 3.3 s (0%)"
    assert start.doing(102.0) == "loading weights, ready in 1.3 s (61%)"
    assert (start.progress(99.0), start.progress(104.0), start.left_s(104.0)) == (0.0, 1.0, 0.0)
    assert durations.fall_asleep(2, 0.0).progress(0.0) == 1.0
