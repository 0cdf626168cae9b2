"""Streams for tests, and how to compare them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import pairwise

import numpy as np
import yaml

from core.simulator.fields import Section
from core.simulator.kernel.arrivals import Arrivals
from core.simulator.workload.columns import block_of, joined

EMPTY = block_of(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))


def section(text: str) -> Section:
    return Section("workload", yaml.safe_load(text))


def blocks(times: Sequence[float], *ends: int) -> list[Arrivals]:
    """Requests numbered by their prompts, cut at `ends`."""
    cuts = [0, *sorted({min(end, len(times)) for end in ends}), len(times)]
    number = np.arange(len(times), dtype=np.int64) + 1
    return [block_of(np.asarray(times[a:b], float), number[a:b], number[a:b]) for a, b in pairwise(cuts)]


def whole(stream: Iterable[Arrivals]) -> Arrivals:
    return joined([EMPTY, *stream])


def assert_same(found: Arrivals, expected: Arrivals) -> None:
    for column in fields(Arrivals):
        np.testing.assert_array_equal(getattr(found, column.name), getattr(expected, column.name), column.name)
