"""What came comes again on 1, 2, 3 ... instances."""

from __future__ import annotations

import numpy as np
import pytest

from core.algorithms.fleet.arrival_replay import Arrivals, EngineLoad, fewest, late, prefill_s
from core.engine.compiled_model import iteration, model_row
from core.engine.engine_model import engine_model

ROW = model_row(engine_model("Llama2-70B", "H100-SXM-80GB", 8, "vllm-v1"))
IDLE = EngineLoad(decodes=0.0, context_tokens=0.0, chunk_tokens=1024, iteration_s=0.0)


def arrivals(at_s, tokens=100.0, limit_s=1.0):
    at = np.asarray(at_s, dtype=float)
    return Arrivals(at, np.full(at.size, tokens), np.full(at.size, limit_s))


def heaps(size, count, tokens=4000.0, apart_s=60.0):
    return arrivals(np.repeat(np.arange(count) * apart_s, size), tokens)


def least(seen, nearer=1.0, most=20, load=IDLE, share=0.005):
    return fewest(ROW, seen, load, nearer, most, share)


def test_prefill_takes_its_chunks_one_after_the_other():
    one, two = prefill_s(ROW, np.array([1024.0, 1500.0]), 1024.0, 1.0, 500.0)
    first = iteration(ROW, 1980.0, 1024.0, 0.0, 1024.0**2 / 2, 1.0, 1.0, 500.0)[0]
    rest = iteration(ROW, 1980.0, 476.0, 1024.0, 476.0 * (1024.0 + 238.0), 1.0, 1.0, 500.0)[0]
    assert (one, two) == (pytest.approx(first), pytest.approx(first + rest))


@pytest.mark.parametrize(("instances", "expected"), [(1, 3), (2, 2), (3, 1), (4, 0)])
def test_requests_join_the_instance_that_is_free_first(instances, expected):
    at_s, takes_s, limit_s = np.zeros(4), np.full(4, 0.6), np.full(4, 1.0)
    assert late(at_s, takes_s, limit_s, instances, np.inf) == expected


def test_a_heap_needs_as_many_as_its_prompts_take_beside_each_other():
    alone_s = float(prefill_s(ROW, np.array([4000.0]), 1024.0, 1.0, 0.0)[0])
    each = int(1.0 / alone_s)  # that one instance serves in time, one after the other
    assert each >= 2
    assert least(heaps(size=each, count=300)) == 1
    assert least(heaps(size=2 * each + 1, count=300)) == 3
    assert least(heaps(size=2 * each + 1, count=300), most=2) == 2


def test_one_heap_among_many_requests_may_be_late_and_one_among_few_may_not():
    quiet = np.arange(3000.0)
    heap = np.full(11, 1500.5)
    many = arrivals(np.sort(np.concatenate([quiet, heap])), 4000.0)
    few = arrivals(np.sort(np.concatenate([quiet[1450:1550], heap])), 4000.0)
    assert least(many) == 1
    assert least(few) > 1


def test_a_prompt_that_no_number_of_instances_serves_in_time_is_not_counted():
    assert least(arrivals(np.arange(100.0) * 60.0, tokens=30_000.0, limit_s=0.2)) == 1


def test_more_are_needed_when_requests_come_nearer_and_when_less_of_the_limit_is_left():
    rng = np.random.default_rng(1)
    seen = arrivals(np.cumsum(rng.exponential(0.4, 4000)), 4000.0)
    assert least(seen) < least(seen, nearer=3.0)
    busy = EngineLoad(decodes=200.0, context_tokens=1500.0, chunk_tokens=1024, iteration_s=0.6)
    assert least(seen) < least(seen, load=busy)


def test_nothing_that_came_needs_one_and_no_room_is_no_instance():
    assert least(arrivals([])) == 1
    assert least(arrivals([]), most=0) == 0


def test_since_keeps_the_last_of_a_time_and_no_fewer_than_asked_for():
    seen = arrivals(np.arange(100.0))
    assert seen.since(90.0, 5).at_s.tolist() == list(range(90, 100))
    assert seen.since(99.0, 5).at_s.tolist() == list(range(95, 100))
    assert seen.since(99.0, 500).at_s.size == 100


def test_requests_come_nearer_only_for_a_load_that_was_never_seen():
    seen = arrivals(np.arange(0.0, 1200.0, 0.5))  # 2 requests/s
    assert seen.nearer(1200.0, 2.0) == pytest.approx(1.0, rel=0.05)
    assert seen.nearer(1200.0, 4.0) == pytest.approx(2.0, rel=0.05)
    assert arrivals([]).nearer(0.0, 4.0) == 1.0


def test_requests_come_further_apart_after_ten_quiet_minutes_and_not_before():
    seen = arrivals(np.concatenate([np.arange(0.0, 1200.0, 0.5), np.arange(1200.0, 1800.0, 5.0)]))
    assert seen.nearer(1230.0, 0.2) == pytest.approx(1.0, abs=0.05)
    assert seen.nearer(1800.0, 0.2) == pytest.approx(0.2 / (2520 / 1800), rel=0.05)
