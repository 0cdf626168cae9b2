"""What came comes again on 1, 2, 3 ... instances."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.algorithms.fleet.arrival_replay import (
    FLIGHT,
    TOKENS,
    Again,
    Arrivals,
    EngineLoad,
    Replay,
    allowed_late,
    alone_s,
    between,
    hurried_s,
    place_of,
    prefill_s,
    row_of,
    under_way,
)
from core.engine.compiled_model import iteration, model_row
from core.engine.engine_model import engine_model

ROW = model_row(engine_model("Llama2-70B", "H100-SXM-80GB", 8, "vllm-v1"))
LOAD = EngineLoad(answer_tokens=1.0, context_tokens=0.0, chunk_tokens=1024, tpot_s=0.1)


def arrivals(at_s, tokens=100.0, limit_s=1.0):
    at = np.asarray(at_s, dtype=float)
    return Arrivals(at, np.full(at.size, tokens), np.full(at.size, limit_s))


def heaps(size, count, tokens=4000.0, apart_s=60.0):
    return arrivals(np.repeat(np.arange(count) * apart_s, size), tokens)


def replay(seen, nearer=1.0, load=LOAD, largest=256.0):
    return Replay(ROW, Again(seen, load, nearer, [ROW]), largest)


def least(seen, most=20, share=0.005, **given):
    return replay(seen, **given).fewest(most, allowed_late(seen.at_s.size, share, long=False))


def test_prefill_takes_its_chunks_one_after_the_other():
    one, two = prefill_s(ROW, np.array([1024.0, 1500.0]), 1024.0, 1.0, 500.0)
    first = iteration(ROW, 1980.0, 1024.0, 0.0, 1024.0**2 / 2, 1.0, 1.0, 500.0)[0]
    rest = iteration(ROW, 1980.0, 476.0, 1024.0, 476.0 * (1024.0 + 238.0), 1.0, 1.0, 500.0)[0]
    assert (one, two) == (pytest.approx(first), pytest.approx(first + rest))


@pytest.mark.parametrize("tokens", [1.0, 90.0, 1024.0, 5000.0])
@pytest.mark.parametrize("answers", [0.0, 30.0, 200.0])
def test_times_between_those_of_the_table_lie_on_lines(tokens, answers):
    rows = [prefill_s(ROW, TOKENS[:28], 1024.0, n, n * 800.0) for n in (0.0, 100.0, 200.0)]
    exact = prefill_s(ROW, np.array([tokens]), 1024.0, answers, answers * 800.0)[0]
    found = between(np.array(rows), *row_of(answers, 100.0, 3), *place_of(tokens, 28))
    assert found == pytest.approx(exact, rel=0.06)


@pytest.mark.parametrize("tokens", [0.0, 1.0, 1.4, 1.5, 2.0, 3.0, 90.0, 1023.0, 1024.0, 1449.0, 30_000.0])
def test_a_prompt_has_its_place_between_two_lengths(tokens):
    below, share = place_of(tokens, 24)
    expected = min(max(int(np.searchsorted(TOKENS, tokens, "right")) - 1, 0), 22)
    assert below == expected
    at = TOKENS[below] + share * (TOKENS[below + 1] - TOKENS[below])
    assert at == pytest.approx(max(tokens, 1.0))


def test_a_heap_needs_as_many_as_its_prompts_take_beside_each_other():
    alone = float(alone_s(ROW, np.array([4000.0]), LOAD.chunk_tokens)[0])
    each = int(1.0 / alone)  # that one instance serves in time, one after the other
    assert each >= 2
    assert least(heaps(size=each - 1, count=300)) == 1
    assert least(heaps(size=2 * each + 1, count=300)) == 3


def test_none_is_enough_where_all_that_there_are_leave_more_late_than_may_be():
    seen = heaps(size=40, count=300)
    assert least(seen, most=2) is None
    assert replay(seen).late_on(2) > replay(seen).late_on(4) > 0


def test_answers_are_under_way_of_requests_that_came_no_longer_ago_than_they_take():
    assert under_way(np.array([0.0, 1.0, 1.0, 2.5, 3.0, 9.0]), 2.0).tolist() == [0, 1, 2, 2, 3, 0]


class Needs(Replay):
    """On fewer than `count` instances requests are late."""

    def __init__(self, count: int) -> None:
        self.count, self.always_late = count, 0
        self.asked: list[int] = []

    def late_on(self, instances: int, most: float = np.inf) -> int:
        self.asked.append(instances)
        return int(instances < self.count)


@pytest.mark.parametrize("count", [1, 2, 5, 11, 12, 13])
def test_the_fewest_are_the_same_wherever_one_looks_first(count):
    expected = count if count <= 12 else None
    assert {Needs(count).fewest(12, 0.0, near) for near in (None, *range(1, 15))} == {expected}


def test_three_replays_tell_that_the_last_answer_is_still_right():
    needs = Needs(20)
    assert needs.fewest(160, 0.0, 20) == 20
    assert needs.asked == [160, 20, 19]


def test_prompts_that_an_instance_is_too_slow_for_are_late_on_any_number_of_them():
    fast = model_row(engine_model("Llama2-70B", "H100-SXM-80GB", 8, "vllm-v1"))
    slow = model_row(engine_model("Llama2-70B", "H100-SXM-80GB", 4, "vllm-v1"))
    tokens = np.tile([200.0, 8000.0, 900.0], 30)
    limit_s = float(alone_s(slow, np.array([8000.0]), LOAD.chunk_tokens)[0]) - 1e-3
    seen = Arrivals(10.0 * np.arange(90), tokens, np.full(90, limit_s))
    own = Replay(slow, Again(seen, LOAD, 1.0, [fast, slow]), 256.0)
    assert own.always_late == own.late_on(50) == 30
    assert own.fewest(50, 29.0) is None
    assert own.fewest(50, 30.0) == 1


def test_short_prompts_that_wait_together_are_taken_in_together():
    alone = float(alone_s(ROW, np.array([50.0]), LOAD.chunk_tokens)[0])
    one_by_one = int(1.0 / alone)
    assert least(heaps(size=3 * one_by_one, count=300, tokens=50.0)) == 1


def test_one_heap_among_many_requests_may_be_late_and_one_among_few_may_not():
    quiet = np.arange(3000.0)
    heap = np.full(11, 1500.5)
    many = arrivals(np.sort(np.concatenate([quiet, heap])), 4000.0)
    few = arrivals(np.sort(np.concatenate([quiet[1450:1550], heap])), 4000.0)
    assert least(many) == 1
    assert least(few) > 1


def test_a_prompt_that_no_number_of_instances_serves_in_time_is_not_counted():
    assert least(arrivals(np.arange(100.0) * 60.0, tokens=30_000.0, limit_s=0.2)) == 1


def test_more_are_needed_when_requests_come_nearer():
    rng = np.random.default_rng(1)
    seen = arrivals(np.cumsum(rng.exponential(0.4, 4000)), 4000.0)
    assert least(seen) < least(seen, nearer=3.0)


def test_more_are_needed_when_answers_fill_iterations_and_batches():
    rng = np.random.default_rng(1)
    seen = arrivals(np.cumsum(rng.exponential(0.1, 4000)), 100.0)
    long = replace(LOAD, answer_tokens=1500.0, context_tokens=1000.0)
    assert least(seen) < least(seen, load=long)
    assert least(seen, load=long) < least(seen, load=long, largest=40.0)


def test_a_paced_prompt_has_more_left_to_do_when_the_next_one_comes():
    seen = arrivals(np.sort(np.concatenate([60.0 * np.arange(200), 60.0 * np.arange(200) + 0.5])), 15_000.0)
    assert replay(seen).late_on(1) == 0
    assert replay(seen, load=replace(LOAD, ttft_share=0.95)).late_on(1) > 0


@pytest.mark.parametrize(
    ("top_s", "chunks", "expected"),
    [(1.0, 4.0, (2.0, 2.0 + 2 * 0.25)), (1.0, 1.0, (4.0, 4.0)), (4.0, 4.0, (2.0, 4.0))],
    ids=["paced", "one chunk", "at the top already"],
)
def test_a_paced_prefill_goes_on_at_the_top_after_the_chunk_in_flight(top_s, chunks, expected):
    flight = np.zeros(1, FLIGHT)
    flight["ends_s"], flight["top_s"], flight["chunks"] = 4.0, top_s, chunks
    assert hurried_s(flight[0], 1.5) == pytest.approx(expected)


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


def test_a_short_prompt_comes_between_the_chunks_of_a_long_one_which_ends_later():
    tokens = np.array([15_000.0, 50.0] * 100)
    seen = Arrivals(np.repeat(60.0 * np.arange(100), 2) + np.tile([0.0, 0.1], 100), tokens, np.full(200, 0.75))
    assert replay(seen).late_on(1) == 0, "the short one does not wait for the long one, nor holds it up for long"
    many = np.concatenate([[0.0], 0.05 + 0.02 * np.arange(20)])
    held_up = Arrivals(many, np.array([15_000.0, *[400.0] * 20]), np.full(21, 0.75))
    assert replay(held_up).late_on(1) == 1


def test_of_prompts_that_wait_the_shortest_are_taken_in_first():
    long, short = [9000.0] * 3, [60.0] * 10
    seen = Arrivals(np.zeros(14), np.array([2000.0, *long, *short]), np.full(14, 0.75))
    assert replay(seen).late_on(1) == 2, "of the long ones; with them before the short ones all would be"


def test_answers_under_way_keep_a_prompt_from_being_slow():
    at_s = np.sort(np.concatenate([0.5 * np.arange(400), 20.0 * np.arange(10) + 0.3]))
    seen = Arrivals(at_s, np.where(np.arange(at_s.size) % 41 == 0, 9000.0, 200.0), np.full(at_s.size, 1.0))
    paced = replace(LOAD, ttft_share=0.95)
    alone, beside = (replay(seen, load=replace(paced, answer_tokens=n)).late_on(1) for n in (1.0, 400.0))
    assert beside <= alone
