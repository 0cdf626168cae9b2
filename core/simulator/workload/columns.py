"""Blocks of requests: cut, joined and re-cut. Nothing here draws a random number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from core.simulator.kernel.arrivals import Arrivals, Stream

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def block_of(
    arrival_s: Floats, prompt_tokens: Ints, output_tokens: Ints, predicted_tokens: Ints | None = None
) -> Arrivals:
    """Makes a block of service 0 and tenant 0 from columns, one entry a request."""
    zeros = np.zeros(arrival_s.size, np.int64)
    return Arrivals(arrival_s, prompt_tokens, output_tokens, zeros, zeros, predicted_tokens)


def pick(block: Arrivals, rows: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Arrivals:
    """Returns the rows of a block that `rows` picks, one entry a row; a slice shares memory with it."""
    return Arrivals(
        block.arrival_s[rows],
        block.prompt_tokens[rows],
        block.output_tokens[rows],
        block.service[rows],
        block.tenant[rows],
        None if block.predicted_tokens is None else block.predicted_tokens[rows],
    )


def joined(blocks: Sequence[Arrivals]) -> Arrivals:
    """Joins the rows of all blocks, one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    recorded = any(b.predicted_tokens is not None for b in blocks)
    return Arrivals(
        np.concatenate([b.arrival_s for b in blocks]),
        np.concatenate([b.prompt_tokens for b in blocks]),
        np.concatenate([b.output_tokens for b in blocks]),
        np.concatenate([b.service for b in blocks]),
        np.concatenate([b.tenant for b in blocks]),
        np.concatenate([predicted_or_none(b) for b in blocks]) if recorded else None,
    )


def predicted_or_none(block: Arrivals) -> Ints:
    """Returns what was predicted of each request, 0 where nothing was."""
    return np.zeros(len(block), np.int64) if block.predicted_tokens is None else block.predicted_tokens


def in_order(block: Arrivals) -> Arrivals:
    """Sorts the rows by time of arrival; those of one instant keep their order."""
    return pick(block, np.argsort(block.arrival_s, kind="stable"))


def at(block: Arrivals, arrival_s: Floats) -> Arrivals:
    """Returns the block with other arrivals in seconds, one entry a row."""
    return replace(block, arrival_s=arrival_s)


def recut(stream: Stream, rows: int) -> Stream:
    """Yields the same requests in blocks of exactly `rows`, but for the last one."""
    pending: list[Arrivals] = []
    count = 0
    for block in stream:
        pending.append(block)
        count += len(block)
        if count < rows:
            continue
        whole = joined(pending)
        full = count - count % rows
        for first in range(0, full, rows):
            yield pick(whole, slice(first, first + rows))
        pending, count = [pick(whole, slice(full, None))], count - full
    if count:
        yield joined(pending)


def cut(stream: Stream, requests: int | None, duration_s: float | None) -> Stream:
    """Yields the first `requests` of those that arrive within `duration_s`; reads no more of the stream than that
    takes."""
    left = requests
    for block in stream:
        end = len(block)
        if duration_s is not None:
            end = int(np.searchsorted(block.arrival_s, duration_s, side="right"))
        late = end < len(block)
        if left is not None:
            end = min(end, left)
            left -= end
        if end:
            yield pick(block, slice(0, end))
        if late or left == 0:
            return


def merge(streams: Sequence[Stream]) -> Stream:
    """Merges all requests of all streams in order of arrival; at one instant, those of an earlier stream come first.

    Holds about a block of each stream.
    """
    sources: list[Iterator[Arrivals]] = [iter(stream) for stream in streams]
    pending: list[list[Arrivals]] = [[] for _ in sources]
    last_s = np.full(len(sources), -np.inf)  # of what is pending; inf: the stream has ended
    while True:
        for n in np.flatnonzero(last_s == last_s.min(initial=np.inf)).tolist():
            if last_s[n] == np.inf:
                continue
            block = next((b for b in sources[n] if len(b)), None)
            last_s[n] = np.inf if block is None else block.arrival_s[-1]
            if block is not None:
                pending[n].append(block)
        horizon_s = last_s.min(initial=np.inf)  # more may still come at this very instant
        ready: list[Arrivals] = []
        for n, blocks in enumerate(pending):
            if not blocks:
                continue
            whole = joined(blocks)
            end = int(np.searchsorted(whole.arrival_s, horizon_s, side="left"))
            if end:
                ready.append(pick(whole, slice(0, end)))
            pending[n] = [pick(whole, slice(end, None))] if end < len(whole) else []
        if ready:
            yield in_order(joined(ready))
        if horizon_s == np.inf:
            return
