from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.clock.projection import E2E, KEPT, TBT, Outlook, late, lowest_clock, outlook, project
from core.algorithms.clock.speed_table import EngineShape, SpeedTable, speed_table
from core.predictors.ips import EngineIps
from tests.unit.core.boards import CLOCKS_MHZ, FakeEngine, Row, board, rows, table, walk

TABLE = table()


# -- projection (eq. 1 and 2) ---------------------------------------------------------------------------


def test_blocks_follow_equation_one_when_a_request_is_new() -> None:
    """|q| = 10, r = 5, N = 4: ceil((j - s + |q|) / N) for j - s = 0..4 is 3, 3, 3, 4, 4; then nothing."""
    found = project(board(Row(prompt=10, remaining=5)), block_tokens=4, chunk_tokens=1000)
    assert found.kv_blocks.tolist() == [3, 3, 3, 4, 4]
    assert found.batch.tolist() == [1] * 5
    assert found.prompt_tokens.tolist() == [10, 0, 0, 0, 0]
    assert found.ends.tolist() == [5]


def test_blocks_go_on_where_they_were_when_a_request_is_under_way() -> None:
    """The same request two iterations later: its prompt and the first token it generated are in the cache."""
    found = project(board(Row(kv=11, remaining=3)), block_tokens=4, chunk_tokens=1000)
    assert found.kv_blocks.tolist() == [3, 4, 4]


def test_batch_shrinks_when_requests_end() -> None:
    found = project(board(Row(kv=3, remaining=1), Row(kv=3, remaining=4)), block_tokens=4, chunk_tokens=8)
    assert found.batch.tolist() == [2, 1, 1, 1]
    assert found.kv_blocks.tolist() == [2, 2, 2, 2]


def test_prompts_wait_for_each_other_when_a_chunk_is_full() -> None:
    found = project(board(Row(prompt=12), Row(prompt=6, remaining=2)), block_tokens=4, chunk_tokens=8)
    assert found.prompt_tokens.tolist() == [8, 8, 2, 0]
    assert found.ends.tolist() == [2, 4]


def test_nothing_comes_when_nothing_runs() -> None:
    found = project(board(), block_tokens=4, chunk_tokens=8)
    assert (found.batch.size, found.peak_kv_blocks) == (0, 0)
    assert lowest_clock(board(), found, TABLE, 0.0, 0.2).clock == 0
    assert outlook(found, TABLE, 0).mean_tbt_s == 0.0


@pytest.mark.parametrize("row", [Row(remaining=0), Row(kv=-1), Row(prompt=-1)])
def test_projection_is_refused_when_a_count_makes_no_sense(row: Row) -> None:
    with pytest.raises(ValueError, match="at least one to generate"):
        project(board(row), 4, 8)


@settings(deadline=None, max_examples=150)
@given(rows(), st.integers(1, 9), st.integers(1, 80))
def test_projection_is_the_walk_when_tokens_are_taken_one_by_one(
    given_rows: list[Row], block_tokens: int, chunk_tokens: int
) -> None:
    found = project(board(*given_rows), block_tokens, chunk_tokens)
    walked = walk(given_rows, block_tokens, chunk_tokens)
    assert found.batch.tolist() == walked.batch
    assert found.kv_blocks.tolist() == walked.kv_blocks
    assert found.prompt_tokens.tolist() == walked.prompt_tokens
    assert found.ends.tolist() == walked.ends


@settings(deadline=None, max_examples=50)
@given(rows(), rows(max_size=1))
def test_no_iteration_gets_lighter_when_a_request_joins(given_rows: list[Row], more: list[Row]) -> None:
    before = project(board(*given_rows), 4, 16)
    after = project(board(*given_rows).plus(board(*more)), 4, 16)
    n = before.batch.size
    assert after.batch.size >= n
    assert (after.batch[:n] >= before.batch).all()
    assert (after.kv_blocks[:n] >= before.kv_blocks).all()
    assert (after.ends[: len(given_rows)] == before.ends).all()


# -- times (eq. 3) --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(rows(), st.integers(0, len(CLOCKS_MHZ) - 1))
def test_finish_times_are_sums_of_iterations_when_walked(given_rows: list[Row], clock: int) -> None:
    given_board = board(*given_rows)
    look = outlook(project(given_board, 4, 32), TABLE, clock)
    seconds = walk(given_rows, 4, 32).seconds(CLOCKS_MHZ[clock])
    ends = walk(given_rows, 4, 32).ends
    assert look.finish_s == pytest.approx([sum(seconds[:end]) for end in ends])
    assert look.mean_tbt_s == pytest.approx(sum(seconds) / len(seconds) if seconds else 0.0)


@settings(deadline=None, max_examples=40)
@given(rows())
def test_nobody_ends_later_when_the_clock_is_higher(given_rows: list[Row]) -> None:
    projection = project(board(*given_rows), 4, 32)
    finish = [outlook(projection, TABLE, clock).finish_s for clock in range(len(CLOCKS_MHZ))]
    assert all((high <= low).all() for low, high in pairwise(finish))


def test_deadline_is_missed_when_the_end_falls_on_it() -> None:
    """Eq. 4 is strict."""
    end_s = float(outlook(project(board(Row()), 4, 8), TABLE, 2).finish_s[0])
    assert end_s == pytest.approx(0.0101)  # one token at 1000 MHz, one block
    three = board(Row(deadline_s=end_s), Row(deadline_s=end_s + 1e-6), Row(deadline_s=0.0, lost=True))
    look = Outlook(end_s, np.full(3, end_s))
    assert late(three, look, 0.0).tolist() == [True, False, False]
    assert late(three, look, 1.0).tolist() == [True, True, False]


# -- search (IV-E) --------------------------------------------------------------------------------------


# No mean of this table's times is exactly one of them: the two ways to sum would round to either side of it.
LIMITS_S = (None, 0.00803, 0.01207, 0.02011, 0.05003)


def brute_force(given_rows: list[Row], speed: SpeedTable, now_s: float, tbt_s: float | None) -> int | None:
    """The lowest of all clocks at which the walk keeps every limit."""
    walked = walk(given_rows, speed.shape.block_tokens, speed.shape.chunk_tokens)
    for clock, mhz in enumerate(speed.clocks_mhz.tolist()):
        seconds = walked.seconds(mhz)
        slow = tbt_s is not None and seconds and sum(seconds) / len(seconds) > tbt_s
        missed = any(
            now_s + sum(seconds[:end]) >= row.deadline_s
            for row, end in zip(given_rows, walked.ends, strict=True)
            if not row.lost
        )
        if not slow and not missed:
            return clock
    return None


@settings(deadline=None, max_examples=150)
@given(rows(), st.sampled_from(LIMITS_S), st.floats(0.0, 0.3))
def test_search_finds_what_brute_force_finds_when_any_batch_runs(
    given_rows: list[Row], tbt_s: float | None, now_s: float
) -> None:
    given_board = board(*given_rows)
    found = lowest_clock(given_board, project(given_board, 4, 32), TABLE, now_s, tbt_s)
    assert found.clock == brute_force(given_rows, TABLE, now_s, tbt_s)
    assert len(found.probes) <= 3


def test_search_says_what_each_clock_breaks() -> None:
    """1 token a row: 10.1 ms at 1000 MHz, 20.2 ms at 500 MHz."""
    slow = board(Row(remaining=1))
    found = lowest_clock(slow, project(slow, 4, 8), TABLE, 0.0, 0.0102)
    assert (found.clock, found.probes) == (2, ((2, KEPT), (1, TBT)))
    hurried = board(Row(remaining=1, deadline_s=0.0102))
    found = lowest_clock(hurried, project(hurried, 4, 8), TABLE, 0.0, None)
    assert (found.clock, found.probes) == (2, ((2, KEPT), (1, E2E)))


@settings(deadline=None, max_examples=60)
@given(rows(), rows(max_size=2))
def test_clock_never_falls_when_requests_join(given_rows: list[Row], more: list[Row]) -> None:
    """By deadlines alone: the mean time between tokens may fall when there are more iterations to come."""
    before = board(*given_rows)
    after = before.plus(board(*more))
    low, high = (lowest_clock(b, project(b, 4, 32), TABLE, 0.0, None).clock for b in (before, after))
    top = len(CLOCKS_MHZ)
    assert (top if low is None else low) <= (top if high is None else high)


# -- the table ------------------------------------------------------------------------------------------


def test_table_is_the_engine_model_when_asked_at_any_batch_and_cache() -> None:
    engine = EngineIps("Llama2-13B", "A100-80GB")
    shape = engine.shape(2, max_sequences=64)
    speed = speed_table(engine, engine, shape, (600.0, 1000.0, 1410.0))
    rng = np.random.default_rng(3)
    for clock, batch in ((0, 1), (1, 33), (2, 64), (1, 50)):
        kv = int(rng.integers(batch, 3000))
        one = board(*[Row(kv=kv * 16 // batch - 1, remaining=1) for _ in range(batch)])
        projection = project(one, 16, 8192)
        took_s = outlook(projection, speed, clock).finish_s[0]
        ips = engine.predict(2, np.array([float(batch)]), projection.kv_blocks.astype(float), speed.clocks_mhz[[clock]])
        assert took_s * ips[0] == pytest.approx(1.0, rel=0.002)


def test_table_never_gets_slower_when_the_model_does() -> None:
    class Noisy(FakeEngine):
        def predict(self, tp, batch, kv_blocks, mhz):  # type: ignore[no-untyped-def]
            return super().predict(tp, batch, kv_blocks, np.where(mhz == 1250.0, 700.0, mhz))

    speed = speed_table(Noisy(), None, EngineShape(1, 100), CLOCKS_MHZ)
    assert (np.diff(speed.seconds, axis=0) <= 0.0).all()
    assert (speed.prompt_s == 0.0).all()


def test_table_is_slower_by_the_margin_when_one_is_given() -> None:
    shape = EngineShape(1, 100, 4, 4, 16)
    plain, careful = (speed_table(FakeEngine(), FakeEngine(), shape, CLOCKS_MHZ, margin) for margin in (0.0, 0.1))
    assert careful.seconds == pytest.approx(1.1 * plain.seconds)
    assert careful.prompt_s == pytest.approx(1.1 * plain.prompt_s)


@pytest.mark.parametrize("clocks_mhz", [(), (0.0, 500.0), (500.0, 500.0), (900.0, 500.0)])
def test_table_is_refused_when_the_clocks_do_not_ascend(clocks_mhz: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        speed_table(FakeEngine(), None, EngineShape(1, 100), clocks_mhz)
