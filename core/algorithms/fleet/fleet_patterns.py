"""Eq. 1 of one partition as a choice among patterns, after Dantzig and Wolfe: a tight bound and a good plan, early.

A pattern of a class is how many workers of each mode carry it, wherever they stand: a whole solution of (1b) for that
class alone. A plan takes one pattern for each class, and places its workers on the sites' GPUs (1c). Patterns are made
as they are needed: the linear master program, of those at hand, prices the GPUs of each site; at these prices each mode
has a place where its worker is cheapest, and each class its cheapest pattern, by a small integer program.

At any prices the cheapest patterns and what the GPUs fetch bound every whole plan from below (Lagrange). That is much
tighter than the linear relaxation of eq. 1, which covers a class with parts of workers: where it needs ten of them,
rounding the last one up costs some percent. The whole solution of the last master program is the plan.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from core.algorithms.fleet import highs
from core.algorithms.fleet.highs import Floats, Ints, Program

Pattern = tuple[int, ...]  # how many workers of each of a class's modes

_ROUNDS, _ROUNDS_SHARE = 16, 0.6  # at most, and of the time
_LEAST_S = 0.05  # for a plan
_SMOOTHING = 0.5  # of prices, from round to round: those of a master with few patterns jump about
_KNAPSACK_S = 1.0  # a limit that programs of a few columns do not come near
_DEAR = 10.0  # what no pattern at all costs in the master, as a multiple of the relaxed optimum


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """`bound`: no whole plan costs less. `counts`: of each option in the plan found; None: there is none."""

    bound: float
    counts: Ints | None


def priced(
    program: Program, relaxed: highs.Relaxed, classes: int, time_limit_s: float, gap: float, cutoff: float
) -> Priced:
    """Adds patterns until bound and master are within a quarter of `gap`, then the whole master to half of it.

    Args:
        program: Columns: options, then the sums N of each class and mode. Rows: (1b) by class, (1c) by site and GPU
            type, then N = sum of n.
        relaxed: Its relaxed optimum.
        classes: How many rows (1b) there are.
        time_limit_s: About, from now on.
        cutoff: When the bound is above this cost a plan is of no use, and none is looked for.
    """
    started_s = time.perf_counter()
    parts = _Parts(program, classes)
    prices = np.minimum(0.0, relaxed.prices[parts.pools])
    bound, master = relaxed.cost, -math.inf
    patterns: list[dict[Pattern, None]] = [{} for _ in range(classes)]  # in order of appearance
    for _ in range(_ROUNDS):
        cheapest = parts.cheapest(prices)
        if cheapest is None:
            return Priced(bound, None)
        found, total = cheapest
        for own, pattern in zip(patterns, found, strict=True):
            own.setdefault(pattern)
        bound = max(bound, total + float(prices @ parts.gpus))
        near = math.isfinite(master) and master - bound <= gap / 4.0 * abs(master)
        if near or bound > cutoff or time.perf_counter() - started_s > _ROUNDS_SHARE * time_limit_s:
            break
        answer = highs.relaxed(parts.master(patterns, _DEAR * abs(relaxed.cost)))
        if answer is None:
            break
        master = answer.cost
        prices = np.minimum(0.0, _SMOOTHING * prices + (1.0 - _SMOOTHING) * answer.prices[: prices.size])
    if bound > cutoff:
        return Priced(bound, None)
    left_s = started_s + time_limit_s - time.perf_counter()
    whole, _ = highs.search(parts.master(patterns, None), max(_LEAST_S, left_s), gap / 2.0)
    return Priced(bound, None if whole is None else whole[: parts.options])


class _Parts:
    """The pieces of a program that the master and the classes' own programs are made of."""

    def __init__(self, program: Program, classes: int) -> None:
        starts = np.asarray(program.starts)
        rows, coefficients = np.asarray(program.rows), np.asarray(program.coefficients)
        sums = int(np.count_nonzero(coefficients[starts[1:] - 1] < 0.0))  # each sum ends with its own -1
        self.options = len(program.cost) - sums
        self.pools = slice(classes, len(program.lower) - sums)
        self.gpus = program.upper[self.pools]
        self._need = program.lower[:classes]
        self._cost, self._most = program.cost[: self.options], program.most[: self.options]
        first_link = len(program.lower) - sums
        last = starts[self.options]
        self._starts = starts[: self.options + 1]
        self._rows, self._coefficients = rows[:last] - classes, coefficients[:last]
        self._option = np.repeat(np.arange(self.options), np.diff(self._starts))
        self._on_gpus = self._rows < first_link - classes
        self._link = self._rows[~self._on_gpus] - (first_link - classes)  # each option's sum
        self._rps = coefficients[starts[self.options : -1]]
        self._most_sum = program.most[self.options :]
        of_class = rows[starts[self.options : -1]]
        self._members = [np.flatnonzero(of_class == number) for number in range(classes)]

    def cheapest(self, prices: Floats) -> tuple[list[Pattern], float] | None:
        """Finds each class's best pattern where GPUs have these prices (not above 0), and what they cost together."""
        own = self._on_gpus
        paid = np.bincount(self._option[own], prices[self._rows[own]] * self._coefficients[own], self.options)
        each = np.full(self._rps.size, math.inf)
        np.minimum.at(each, self._link, self._cost - paid)
        found, total = [], 0.0
        for need, members in zip(self._need, self._members, strict=True):
            rps = self._rps[members]
            rows, starts = [0] * members.size, list(range(members.size + 1))
            own_need, no_limit = np.array([need]), np.array([math.inf])
            program = Program(each[members], self._most_sum[members], own_need, no_limit, starts, rows, rps.tolist())
            pattern, outcome = highs.search(program, _KNAPSACK_S, 0.0)
            if pattern is None or outcome.bound is None:
                return None
            found.append(tuple(pattern.tolist()))
            total += outcome.bound
        return found, total

    def master(self, patterns: Sequence[Collection[Pattern]], dear: float | None) -> Program:
        """Builds the program that chooses one pattern for each class; at the cost `dear`, unless that is None, a class
        may go without."""
        pools, links = self.gpus.size, self._rps.size
        rows, coefficients, starts = self._rows.tolist(), self._coefficients.tolist(), self._starts.tolist()
        cost, most = self._cost.tolist(), self._most.tolist()
        for number, (members, own) in enumerate(zip(self._members, patterns, strict=True)):
            for pattern in own:
                used = [(int(link), count) for link, count in zip(members, pattern, strict=True) if count]
                rows += [pools + link for link, _ in used] + [pools + links + number]
                coefficients += [-float(count) for _, count in used] + [1.0]
                starts.append(len(rows))
                cost.append(0.0)
                most.append(1.0)
            if dear is not None:
                rows.append(pools + links + number)
                coefficients.append(1.0)
                starts.append(len(rows))
                cost.append(dear)
                most.append(1.0)
        lower = np.concatenate([np.full(pools, -math.inf), np.zeros(links), np.ones(len(patterns))])
        upper = np.concatenate([self.gpus, np.zeros(links), np.ones(len(patterns))])
        return Program(np.array(cost), np.array(most), lower, upper, starts, rows, coefficients)
