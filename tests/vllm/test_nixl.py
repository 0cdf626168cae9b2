"""NIXL as engines use it, without the engines: caches over a link that is slow and loses packets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .two_ends import End, send, two_ends

BLOCKS, BLOCK_BYTES = 24, 65_536


@pytest.fixture(scope="module")
def ends(far_apart: None) -> Iterator[list[End]]:
    with two_ends(4.0, 0.002, BLOCKS, BLOCK_BYTES) as ends:
        yield ends


@pytest.mark.parametrize("chunk_blocks", [None, 1, 4, 7])
def test_cache_arrives_as_it_was_sent(ends: list[End], chunk_blocks: int | None) -> None:
    right, exposed_s = send(ends, f"by {chunk_blocks}", [0.02 * (n + 1) for n in range(BLOCKS)], chunk_blocks)
    print(f"in chunks of {chunk_blocks}: the last block came {1000 * exposed_s:.0f} ms after it was computed")
    assert right == BLOCKS


def test_caches_follow_each_other_at_once(ends: list[End]) -> None:
    for number in range(5):
        assert send(ends, f"number {number}", [0.0] * BLOCKS, 4)[0] == BLOCKS
