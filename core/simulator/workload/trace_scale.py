"""More or fewer requests of a trace without changing its shape, and whose requests they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from core.simulator.kernel.arrivals import BLOCK_REQUESTS, Arrivals, Stream
from core.simulator.workload.columns import Floats, at, in_order, joined, pick, recut
from core.simulator.workload.generate import Quantity, random_stream


def scale_time(stream: Stream, factor: float) -> Stream:
    """Lets time run `factor` times as fast: the same requests in a shorter span."""
    return (at(block, block.arrival_s / factor) for block in stream)


def scale_rate(stream: Stream, factor: float, jitter_s: float, seed: int, number: int = 0) -> Stream:
    """Yields `factor` times as many requests in the same span.

    Below 1 each request is kept with this probability. Above 1 each stays where it is and gets factor - 1 copies on
    average (the fraction by chance), each moved by a uniform draw within +-jitter_s and reflected at both ends of the
    span: rates of stretches much longer than that keep their ratios, shorter bursts are smoothed.
    """
    if factor == 1.0:
        return stream
    copies = random_stream(seed, number, Quantity.COPIES)
    if factor < 1.0:
        return (pick(block, copies.random(len(block)) < factor) for block in stream)
    # Cut first, so that a block with its copies is about a block.
    few = recut(stream, max(1, int(BLOCK_REQUESTS / factor)))
    return _superposed(few, factor, jitter_s, copies, random_stream(seed, number, Quantity.JITTER))


def _superposed(
    stream: Stream, factor: float, jitter_s: float, copies: np.random.Generator, jitter: np.random.Generator
) -> Stream:
    pending: list[Arrivals] = []  # not yet safe to hand out: a copy of a later request may come before
    last_s = 0.0
    for block in stream:
        count = int(factor) + (copies.random(len(block)) < factor % 1.0)
        row = np.repeat(np.arange(len(block)), count)
        is_copy = np.ones(row.size, np.bool_)
        is_copy[np.cumsum(count) - count] = False
        arrival_s = block.arrival_s[row]
        arrival_s[is_copy] = np.abs(arrival_s[is_copy] + jitter.uniform(-jitter_s, jitter_s, int(is_copy.sum())))
        last_s = float(block.arrival_s[-1])
        whole = in_order(joined([*pending, at(pick(block, row), arrival_s)]))
        end = int(np.searchsorted(whole.arrival_s, last_s - jitter_s, side="left"))
        if end:
            yield pick(whole, slice(0, end))
        pending = [pick(whole, slice(end, None))]
    if pending:
        whole = joined(pending)
        yield in_order(at(whole, _reflected(whole.arrival_s, last_s)))


def _reflected(arrival_s: Floats, last_s: float) -> Floats:
    """Folds arrivals into the span, (n,); what a span shorter than the jitter still leaves outside goes to its ends."""
    result: Floats = np.clip(np.where(arrival_s > last_s, 2.0 * last_s - arrival_s, arrival_s), 0.0, last_s)
    return result


def tagged(stream: Stream, service: int) -> Stream:
    """Marks requests as one service's."""
    return (replace(block, service=np.full(len(block), service, np.int64)) for block in stream)


def with_tenants(stream: Stream, shares: Sequence[float], index: Sequence[int], seed: int, number: int = 0) -> Stream:
    """Gives each request a tenant by chance: index[k] to a share shares[k] of them."""
    rng = random_stream(seed, number, Quantity.TENANTS)
    ends = np.cumsum(shares) / np.sum(shares)
    tenants = np.asarray(index, np.int64)
    for block in stream:
        drawn = np.searchsorted(ends[:-1], rng.random(len(block)), side="right")
        yield replace(block, tenant=tenants[drawn])
