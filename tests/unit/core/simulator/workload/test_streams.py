import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.simulator.kernel.arrivals import BLOCK_REQUESTS, Arrivals
from core.simulator.workload import Generator, generate, merge
from core.simulator.workload.columns import cut, joined, recut
from core.simulator.workload.curves import PRESETS, week_curve
from core.simulator.workload.lengths import AZURE_CONV
from core.simulator.workload.trace_scale import scale_rate, scale_time, tagged, with_tenants
from tests.unit.core.simulator.workload.helpers import assert_same, blocks, whole

times = st.lists(st.integers(0, 200), max_size=60).map(lambda found: sorted(t / 4 for t in found))
ends = st.lists(st.integers(0, 60), max_size=5)


@given(times, ends, st.integers(1, 70))
def test_recut_keeps_all_requests_in_blocks_of_one_size(at_s: list[float], at: list[int], size: int) -> None:
    found = list(recut(iter(blocks(at_s, *at)), size))
    assert [len(b) for b in found[:-1]] == [size] * (len(found) - 1)
    assert all(0 < len(b) <= size for b in found)
    assert_same(whole(found), whole(blocks(at_s)))


@given(times, ends, st.integers(1, 70), st.none() | st.floats(0.0, 60.0))
def test_cut_takes_the_first_requests_within_the_time(
    at_s: list[float], at: list[int], requests: int, duration_s: float | None
) -> None:
    found = whole(cut(iter(blocks(at_s, *at)), requests, duration_s))
    expected = [t for t in at_s if duration_s is None or t <= duration_s][:requests]
    assert found.arrival_s.tolist() == expected
    assert found.prompt_tokens.tolist() == list(range(1, len(expected) + 1))


def test_cut_reads_no_more_than_it_needs() -> None:
    stream = iter(blocks([0.0, 1.0, 2.0, 3.0], 1, 2, 3))
    list(cut(stream, 2, None))
    assert next(stream).arrival_s.tolist() == [2.0]


@given(st.lists(st.tuples(times, ends, ends), min_size=1, max_size=4))
def test_merge_loses_nothing_and_is_in_order_when_blocks_differ(
    parts: list[tuple[list[float], list[int], list[int]]],
) -> None:
    def merged(which: int) -> Arrivals:
        return whole(merge([tagged(iter(blocks(p[0], *p[which])), n) for n, p in enumerate(parts)]))

    one = merged(1)
    assert_same(one, merged(2))
    expected = sorted((t, n, k + 1) for n, (at_s, _, _) in enumerate(parts) for k, t in enumerate(at_s))
    columns = one.arrival_s.tolist(), one.service.tolist(), one.prompt_tokens.tolist()
    assert list(zip(*columns, strict=True)) == expected


def test_merge_holds_few_blocks_when_a_stream_is_slow() -> None:
    drawn = [0, 0]

    def counted(n: int, rate_rps: float) -> object:
        for block in generate(Generator(rate_rps, AZURE_CONV), 1, n, 100):
            drawn[n] += 1
            yield block

    merged = merge([counted(0, 1.0), counted(1, 50.0)])
    taken = sum(len(next(merged)) for _ in range(50))
    assert 100 * sum(drawn) - taken <= 400


def test_span_shrinks_when_time_is_scaled() -> None:
    assert whole(scale_time(iter(blocks([0.0, 1.0, 4.0], 1)), 2.0)).arrival_s.tolist() == [0.0, 0.5, 2.0]


@settings(deadline=None)
@given(times, ends, ends, st.floats(0.1, 5.0), st.sampled_from([0.0, 1.0, 20.0, 500.0]), st.integers(0, 9))
def test_scaled_requests_are_in_order_and_the_same_when_blocks_differ(
    at_s: list[float], one: list[int], two: list[int], factor: float, jitter_s: float, seed: int
) -> None:
    found, other = (
        whole(scale_rate((b for b in blocks(at_s, *at) if len(b)), factor, jitter_s, seed)) for at in (one, two)
    )
    assert_same(found, other)
    assert (np.diff(found.arrival_s) >= 0.0).all()
    if at_s and len(found):
        assert found.arrival_s[0] >= 0.0
        assert found.arrival_s[-1] <= at_s[-1]
    counts = np.bincount(found.prompt_tokens, minlength=len(at_s) + 1)[1:]
    assert counts.sum() == len(found)
    assert (counts <= int(np.ceil(factor))).all()
    if factor > 1.0:
        assert (counts >= int(factor)).all()
    moved = np.abs(found.arrival_s - np.array(at_s)[found.prompt_tokens - 1]) if len(found) else np.zeros(1)
    assert moved.max() <= jitter_s + 1e-9


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.5, 4.0])
def test_shape_stays_when_the_rate_is_scaled(factor: float) -> None:
    week = Generator(0.5, AZURE_CONV, curve=week_curve(PRESETS["conversation"]))
    plain = whole(cut(generate(week, 1), None, 7 * 86_400.0))
    scaled = whole(scale_rate(iter([plain]), factor, 30.0, 2))
    assert len(scaled) == pytest.approx(factor * len(plain), rel=0.01)
    before, after = (np.bincount((b.arrival_s / 3600.0).astype(int), minlength=168) for b in (plain, scaled))
    spread = np.sqrt(before * factor * max(1.0, factor))
    assert (np.abs(after - factor * before) / spread).max() < 4.0
    assert np.quantile(scaled.prompt_tokens, 0.5) == pytest.approx(np.quantile(plain.prompt_tokens, 0.5), rel=0.01)


def test_blocks_stay_small_when_the_rate_is_scaled_far_up() -> None:
    one = next(generate(Generator(100.0, AZURE_CONV), 1))
    assert max(len(b) for b in scale_rate(iter([one]), 37.3, 5.0, 1)) < 2 * BLOCK_REQUESTS


def test_tenants_have_their_shares_whatever_the_blocks() -> None:
    block = next(generate(Generator(1.0, AZURE_CONV), 1))
    found = whole(with_tenants(iter([block]), [1.0, 3.0, 6.0], [4, 0, 2], 1))
    shares = np.bincount(found.tenant, minlength=5) / len(found)
    assert shares == pytest.approx([0.3, 0.0, 0.6, 0.0, 0.1], abs=0.005)
    assert_same(whole(with_tenants(recut(iter([block]), 777), [1.0, 3.0, 6.0], [4, 0, 2], 1)), found)
    assert joined([block]) is block
