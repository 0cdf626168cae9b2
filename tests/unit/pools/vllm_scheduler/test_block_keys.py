"""Names of KV-cache blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pools.vllm_scheduler.block_keys import BlockKeys


@given(st.lists(st.integers(0, 200_000), max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_keys_are_the_same_however_the_tokens_came(tokens: list[int], stops: list[int]) -> None:
    whole = BlockKeys(8).upto(tokens, len(tokens))
    assert len(whole) == len(tokens) // 8
    by_and_by = BlockKeys(8)
    for stop in sorted(stops):
        assert by_and_by.upto(tokens[:stop], stop) == whole[: min(stop, len(tokens)) // 8]
    assert by_and_by.upto(tokens, len(tokens)) == whole


def test_key_depends_on_all_tokens_before_and_on_the_seed() -> None:
    base = BlockKeys(2).upto([1, 2, 3, 4], 4)
    other = BlockKeys(2).upto([9, 2, 3, 4], 4)
    assert base[1] != other[1]
    assert base[0] != BlockKeys(2, "adapter").upto([1, 2], 2)[0]
    assert BlockKeys(2).upto([1, 2, 3, 4], 3) == base[:1]
