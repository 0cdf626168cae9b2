"""The profiler's plan, journal, declared meter and fit, without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.engine.engine_model import engine_model
from core.engine.iteration import Totals
from core.engine.profiles import Point, load_profiles, write_profile
from core.policy.dynamo_classes import request_classes
from core.types import Limits
from pools.load_generator import Seen
from pools.profiler.counter_watch import CounterSeries, Log
from pools.profiler.measurements import SeenRequests, mean_watts, saturation
from pools.profiler.plan import DECODE, PREFILL, Bounds, RateSearch, loads, sweep
from pools.profiler.profile_picture import profile_panels
from pools.profiler.profiling_journal import Journal, JournalError
from pools.profiler.result import evaluate, hull, words
from pools.profiler.session import whole

HEAD = {"model": "tiny", "gpu": "CPU", "tps": [1]}


def test_every_clock_has_every_batch_when_the_sweep_is_planned() -> None:
    steps = sweep(Bounds(8192, 100_000), (900.0, 1410.0), None, seed=1)
    for mhz in (900.0, 1410.0):
        assert {step.batch for step in steps if step.kind == DECODE and step.mhz == mhz} == {1, 4, 16, 64, 256}
        sizes = {step.prompt_tokens for step in steps if step.kind == PREFILL and step.mhz == mhz}
        assert sizes == {128, 512, 2048}
    assert all(step.batch * (step.prompt_tokens + step.longest_output) <= 100_000 for step in steps if step.batch)
    assert [step.mhz for step in steps] != sorted(step.mhz for step in steps), "in random order"
    assert steps == sweep(Bounds(8192, 100_000), (900.0, 1410.0), None, seed=1)


def test_a_full_cache_is_the_largest_batch_when_it_holds_few_sequences() -> None:
    batches = {step.batch for step in sweep(Bounds(2048, 4_600), (1.0,), None, seed=1) if step.kind == DECODE}
    assert batches == {1, 4, 16, 20}


def test_classes_that_do_not_fit_are_left_out_when_the_engine_is_small() -> None:
    assert [step.name for step in loads(request_classes(), Bounds(1024, None), (1.0,))] == [
        "SS",
        "SM",
        "SL",
        "MS",
        "MM",
    ]
    assert len(loads(request_classes(), Bounds(8192, None), (1.0, 2.0))) == 18


def test_the_rate_is_found_when_it_is_doubled_then_bisected() -> None:
    search, tried = RateSearch(1.0, bisections=4), []
    while (rps := search.next()) is not None:
        tried.append(rps)
        search.tell(rps, saturated=rps > 5.3)
    assert tried == [1.0, 2.0, 4.0, 8.0, 6.0, 5.0, 5.5, 5.25]
    assert search.low_rps == 5.25


def test_the_rate_is_halved_when_even_the_first_saturates() -> None:
    search, tried = RateSearch(4.0, bisections=3), []
    while (rps := search.next()) is not None:
        tried.append(rps)
        search.tell(rps, saturated=rps > 0.7)
    assert tried == [4.0, 2.0, 1.0, 0.5]


def test_a_finished_step_is_kept_when_the_run_is_killed_while_writing_the_next(tmp_path: Path) -> None:
    path = tmp_path / "p.journal"
    journal = Journal(path, HEAD)
    journal.add("one", [{"t_s": 1.0}])
    journal.close()
    with path.open("a") as file:
        file.write('{"step": "two", "ro')
    again = Journal(path, HEAD)
    assert again.done == {"one": [{"t_s": 1.0}]}
    again.add("two", [])
    again.close()
    third = Journal(path, HEAD)
    third.close()
    assert set(third.done) == {"one", "two"}


def test_a_journal_is_refused_when_it_is_of_another_run(tmp_path: Path) -> None:
    path = tmp_path / "p.journal"
    Journal(path, HEAD).close()
    with pytest.raises(JournalError, match=r"\(tps differ\): move it away"):
        Journal(path, {**HEAD, "tps": [2]})
    path.write_text("no journal\n")
    with pytest.raises(JournalError, match="is no journal"):
        Journal(path, HEAD)


def test_a_counter_is_read_between_its_readings_when_time_passes_evenly() -> None:
    series = CounterSeries([1.0, 2.0, 4.0], [10.0, 20.0, 60.0])
    assert series.value_at(3.0) == 40.0
    assert series.time_of(40.0) == 3.0
    assert series.value_at(4.5) is None
    assert CounterSeries().value_at(1.0) is None


def test_a_batch_is_left_out_when_not_every_clock_has_it() -> None:
    shapes = [(900.0, 0, 1), (1410.0, 0, 1), (1410.0, 0, 64), (900.0, 512, 0), (1410.0, 512, 0)]
    rows = [{"mhz": mhz, "prefill_tokens": size, "batch": batch} for mhz, size, batch in shapes]
    kept, holes = whole(rows)
    assert [row["batch"] for row in kept] == [1, 1, 0, 0]
    assert holes == ["left out, not measured at every clock: prefill 0, batch 64"]


def _seen(ttft_s: float, tpot_s: float = 0.01) -> SeenRequests:
    found = SeenRequests(began_s=0.0)
    found.requests = [Seen(n * 0.1, 10, 11, ttft_s, ttft_s + 10 * tpot_s) for n in range(10)]
    return found


def test_a_rate_is_too_high_when_a_limit_is_broken_or_the_queue_grows() -> None:
    limits, calm = Limits(ttft_s=0.5, tpot_s=0.02), Log(waiting=[(n * 0.1, 1) for n in range(100)])
    assert saturation(_seen(0.1), calm, limits, 10.0) == ""
    assert saturation(_seen(0.6), calm, limits, 10.0) == "TTFT p90 above 0.5 s"
    assert saturation(_seen(0.1, tpot_s=0.03), calm, limits, 10.0) == "TPOT p90 above 0.02 s"
    growing = Log(waiting=[(n * 0.1, n) for n in range(100)])
    assert saturation(_seen(0.1), growing, limits, 10.0) == "the queue grows"
    cut_off = _seen(0.1)
    cut_off.failed = 1
    assert saturation(cut_off, calm, limits, 10.0) == "requests did not end"


def test_power_is_of_the_span_alone_when_its_own_readings_tell_it() -> None:
    log = Log(energy_j=CounterSeries([0.0, 1.0, 1.2, 1.4, 1.6, 2.5], [0.0, 100.0, 180.0, 260.0, 340.0, 400.0]))
    assert mean_watts(log, 0.9, 1.7) == pytest.approx(400.0), "not the 100 W before, nor the 67 W after"
    assert mean_watts(log, 0.2, 0.8) == pytest.approx(100.0), "no reading inside: by those around"
    assert mean_watts(log, 2.0, 3.0) is None


def _cpu_rows() -> list[dict[str, float]]:
    rows = []
    for repeat in range(3):
        for batch, each in ((1, 100.0), (4, 100.0), (16, 100.0), (16, 900.0)):
            t_s = (0.005 + 0.0004 * batch + 1e-6 * batch * each) * (1.0 + 0.01 * repeat)
            rows.append({"prefill_tokens": 0, "batch": batch, "context_tokens": batch * each, "t_s": t_s})
        for size in (128, 512):
            t_s = (0.005 + 2e-5 * size) * (1.0 + 0.01 * repeat)
            rows.append({"prefill_tokens": size, "batch": 0, "context_tokens": 0.0, "t_s": t_s})
    return [{**row, "mhz": 2600.0, "watts": 40.0} for row in rows]


def test_a_line_is_fitted_when_the_engine_model_does_not_know_the_machine(tmp_path: Path) -> None:
    found = evaluate(_cpu_rows(), ("tiny", "CPU", 1, "vllm-v1"), "declared", idle_w=10.0)
    assert not found.against
    assert found.line.base_s == pytest.approx(0.00505, rel=1e-3)
    assert found.line.decode_s == pytest.approx(0.000404, rel=1e-3)
    assert found.line.prefill_token_s == pytest.approx(2.02e-5, rel=1e-3)
    assert found.line.context_token_s == pytest.approx(1.01e-6, rel=1e-3)
    assert found.line.costs(400.0).decode_s == pytest.approx(0.000808, rel=1e-3)
    assert (found.line.busy_w, found.line.idle_w) == (40.0, 10.0)
    assert found.line_errors.time_mape < 1e-6
    assert any("at contexts of 512 tokens: fixed_costs: {base_s: 0.00505" in line for line in words(found))
    write_profile(tmp_path / "p.csv", found.profile)
    (read,) = load_profiles(tmp_path / "p.csv")
    assert read == found.profile


def test_the_engine_model_is_rescaled_when_it_knows_the_machine() -> None:
    model = engine_model("Llama3-8B", "A100-80GB", 1)
    rows = []
    for batch in (1, 16):
        for each in (100.0, 1000.0):
            one = model.iteration_of(1410.0, Totals.plain(0, batch, batch * each))
            shape = {"mhz": 1410.0, "prefill_tokens": 0, "batch": batch, "context_tokens": batch * each}
            rows.append({**shape, "t_s": one.t_s * 1.25, "watts": one.watts * 0.8})
    found = evaluate(rows, ("Llama3-8B", "A100-80GB", 1, "vllm-v1"), "test", None)
    assert found.against["decode"].time_mean == pytest.approx(-0.2)
    assert found.against["decode"].watts_mape == pytest.approx(0.25)
    assert found.scales[1410.0] == pytest.approx((1.25, 0.8))
    time, power, hull = profile_panels(found).panels
    assert [line.name for line in time.lines] == [f"1410 MHz, {which} contexts" for which in ("shorter", "longer")]
    assert [list(line.x) for line in (*time.lines, *power.lines)] == [[1, 16]] * 4
    assert [line.y for line in time.lines] == [
        [row["t_s"] * 1e3 for row in rows if row["context_tokens"] == row["batch"] * each] for each in (100.0, 1000.0)
    ]
    assert len(hull.lines[0].x) == 5, "four corners, and the first again"


def test_the_hull_has_the_corners_when_contexts_differ() -> None:
    def point(batch: int, each: float) -> Point:
        return Point(0, 1.0, batch, batch * each, 1.0, None)

    assert set(hull([point(1, 10), point(8, 10), point(8, 90), point(1, 90), point(4, 50)])) == {
        (1, 10.0),
        (8, 10.0),
        (8, 90.0),
        (1, 90.0),
    }
    assert hull([point(1, 10), point(2, 10), point(4, 10)]) == ((1, 10.0), (2, 10.0), (4, 10.0))
