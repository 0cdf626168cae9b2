import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.accounting.allocation import DECODE, PREFILL, RequestSpans, TokenTime, pieces, share_out

INTERVAL_US = 10_000_000
GROUPS = st.lists(
    st.tuples(st.integers(-(10**12), 10**12), st.lists(st.integers(1, 10**10), min_size=1, max_size=20)),
    min_size=1,
    max_size=12,
)
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 1), st.floats(0, 100), st.floats(0, 5), st.floats(0, 60), st.floats(0, 3), st.floats(0, 9)
    ),
    max_size=25,
)


def spans(*requests: tuple[int, float, float, float, float, float]) -> RequestSpans:
    """Of (instance, start, seconds of prefill, seconds of decode, weight of each)."""
    instance, start, prefill, decode, prefill_s, decode_s = (np.array(c) for c in zip(*requests, strict=True))
    first, end = start + prefill, start + prefill + decode
    at = [np.rint(moment * 1e6).astype(np.int64) for moment in (start, first, first, end)]
    return RequestSpans(instance.astype(np.int64), *at, prefill_s.astype(float), decode_s.astype(float))


@given(GROUPS)
def test_shares_add_up_and_are_within_one_of_the_exact_when_cut(groups: list[tuple[int, list[int]]]) -> None:
    totals = np.array([total for total, _ in groups])
    group = np.repeat(np.arange(len(groups)), [len(weights) for _, weights in groups])
    weight = np.array([w for _, weights in groups for w in weights])
    shares = share_out(totals, group, weight)
    for i, (total, weights) in enumerate(groups):
        own = shares[group == i].tolist()
        assert sum(own) == total
        for share, w in zip(own, weights, strict=True):
            assert abs(share - total * w / sum(weights)) <= 1.001


@given(GROUPS)
def test_shares_do_not_depend_on_other_groups_when_cut(groups: list[tuple[int, list[int]]]) -> None:
    group = np.repeat(np.arange(len(groups)), [len(weights) for _, weights in groups])
    together = share_out(np.array([t for t, _ in groups]), group, np.array([w for _, ws in groups for w in ws]))
    for i, (total, weights) in enumerate(groups):
        alone = share_out(np.array([total]), np.zeros(len(weights), dtype=np.int64), np.array(weights))
        assert alone.tolist() == together[group == i].tolist()


def test_nothing_is_shared_when_there_is_nobody() -> None:
    assert share_out(np.array([5]), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)).tolist() == []


def test_weights_follow_tokens_and_time_when_requests_overlap() -> None:
    """Half of a decode from 5 to 15 s lies in each interval; a prefill of 1 s weighs what its tokens take."""
    found = pieces(spans((1, 4.0, 1.0, 10.0, 2.0, 8.0)), np.array([1, 1]), np.array([0, 1]))
    rows = zip(found.interval.tolist(), found.phase.tolist(), found.weight.tolist(), strict=True)
    assert list(rows) == [(0, PREFILL, 2 * 10**9), (0, DECODE, 4 * 10**9), (1, DECODE, 4 * 10**9)]


def test_requests_of_other_instances_and_intervals_have_no_part_when_shared() -> None:
    found = pieces(spans((2, 4.0, 1.0, 3.0, 1.0, 1.0), (1, 94.0, 1.0, 3.0, 1.0, 1.0)), np.array([1]), np.array([0]))
    assert len(found) == 0


def test_phase_still_counts_when_it_was_too_short_for_the_clock() -> None:
    found = pieces(spans((1, 4.0, 0.0, 1.0, 0.5, 1.0)), np.array([1]), np.array([0]))
    assert found.phase.tolist() == [PREFILL, DECODE]


@given(REQUESTS, st.lists(st.integers(0, 10**11), min_size=32, max_size=32))
def test_energy_of_intervals_with_requests_is_shared_whole_when_anything_overlaps(
    requests: list[tuple[int, float, float, float, float, float]], energies: list[int]
) -> None:
    instance, interval = np.repeat([0, 1], 16), np.tile(np.arange(16), 2)
    empty = spans((0, 0.0, 0.0, 0.0, 0.0, 0.0))
    found = pieces(spans(*requests) if requests else empty, instance, interval)
    totals = np.array(energies)
    shares = share_out(totals, found.interval, found.weight)
    with_requests = np.unique(found.interval)
    assert int(shares.sum()) == int(totals[with_requests].sum())
    assert (shares >= 0).all()


@pytest.mark.parametrize("values", [(0.0, 1.0), (1.0, -1.0)])
def test_token_time_is_refused_when_a_token_takes_none(values: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="above 0 seconds per token"):
        TokenTime(*values, source="a test")
