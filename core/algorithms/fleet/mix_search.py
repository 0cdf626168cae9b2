"""DynamoLLM's eq. 1 by counting: all N_i of at most three modes, best bound first (compiled).

For given counts what is left is to share the load: sum of N_i P_i(x_i) over straight pieces, with sum of N_i x_i = L.
Such a sum is least where all modes but one stand at ends of pieces, so that those are all there is to try. Before that
a bound tells whether a count is worth it: P_i replaced by its convex hull, where filling the cheapest slopes first is
exact. Counts are tried from the lowest bound on, until it is no less than the best power found.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LOW, HIGH, LOW_W, HIGH_W, MHZ = range(5)
_EPS = 1e-9


@compiled
def _ends(pieces: Floats, count: int) -> tuple[Floats, Floats]:
    """Returns the ends of a curve's pieces and the power there: of two pieces that meet the cheaper."""
    x, w = np.empty(count + 1), np.empty(count + 1)
    x[0], w[0] = pieces[0, LOW], pieces[0, LOW_W]
    for k in range(count):
        x[k + 1], w[k + 1] = pieces[k, HIGH], pieces[k, HIGH_W]
        if k + 1 < count:
            w[k + 1] = min(w[k + 1], pieces[k + 1, LOW_W])
    return x, w


@compiled
def _curves(lengths: Ints, table: Floats) -> tuple[Floats, Floats, Ints]:
    """Returns `_ends` of all modes, and how many each has."""
    modes = lengths.size
    ends, watts = np.zeros((modes, table.shape[1] + 1)), np.zeros((modes, table.shape[1] + 1))
    sizes = lengths + 1
    for m in range(modes):
        ends[m, : sizes[m]], watts[m, : sizes[m]] = _ends(table[m], lengths[m])
    return ends, watts, sizes


@compiled
def fixed(counts: Ints, lengths: Ints, table: Floats, load: float) -> float:
    """Returns the least power, in W, of these counts (modes,) under a load, shared as is best; infinite: they cannot
    carry it."""
    ends, watts, sizes = _curves(lengths, table)
    return _share(counts, ends, watts, sizes, table, lengths, load, np.zeros(counts.size))


@compiled
def _hull(x: Floats, w: Floats) -> Ints:
    """Returns the places of the lower convex hull of the points, from left to right."""
    kept = np.empty(x.size, np.int64)
    n = 0
    for i in range(x.size):
        while n >= 2:
            a, b = kept[n - 2], kept[n - 1]
            if (w[b] - w[a]) * (x[i] - x[a]) >= (w[i] - w[a]) * (x[b] - x[a]):
                n -= 1
            else:
                break
        kept[n] = i
        n += 1
    return kept[:n].copy()


@compiled
def _slopes(ends: Floats, watts: Floats, sizes: Ints) -> Floats:
    """Returns the hulls' segments of all modes, cheapest first: (mode, width, slope)."""
    rows = np.empty((ends.size, 3))
    n = 0
    for m in range(sizes.size):
        hull = _hull(ends[m, : sizes[m]], watts[m, : sizes[m]])
        for i in range(hull.size - 1):
            a, b = hull[i], hull[i + 1]
            width = ends[m, b] - ends[m, a]
            rows[n, 0], rows[n, 1], rows[n, 2] = m, width, (watts[m, b] - watts[m, a]) / width
            n += 1
    order = np.argsort(rows[:n, 2], kind="mergesort")
    return rows[order]


@compiled
def _bound(counts: Ints, idle_w: Floats, slopes: Floats, load: float) -> float:
    total, left = 0.0, load
    for m in range(counts.size):
        total += counts[m] * idle_w[m]
    for i in range(slopes.shape[0]):
        take = min(left, counts[int(slopes[i, 0])] * slopes[i, 1])
        total += take * slopes[i, 2]
        left -= take
        if left <= 0.0 and slopes[i, 2] >= 0.0:
            break
    return total


@compiled
def _power(pieces: Floats, count: int, x: float) -> tuple[float, float]:
    """Returns the power and clock of one instance at a load within its curve: of pieces that meet there the cheaper."""
    best, mhz = np.inf, 0.0
    for k in range(count):
        low, high = pieces[k, LOW], pieces[k, HIGH]
        if low - _EPS <= x <= high + _EPS:
            share = min(1.0, max(0.0, (x - low) / (high - low)))
            watts = pieces[k, LOW_W] + share * (pieces[k, HIGH_W] - pieces[k, LOW_W])
            if watts < best:
                best, mhz = watts, pieces[k, MHZ]
    return best, mhz


@compiled
def _share(
    counts: Ints, ends: Floats, watts: Floats, sizes: Ints, table: Floats, lengths: Ints, load: float, loads: Floats
) -> float:
    """Returns the least power of given counts; fills `loads` with what one instance of each mode carries."""
    modes = counts.size
    if counts.sum() == 0:
        return 0.0 if load <= _EPS else np.inf
    best = np.inf
    at = np.zeros(modes, np.int64)
    for slack in range(modes):
        if counts[slack] == 0:
            continue
        at[:] = 0
        while True:
            rest, total = load, 0.0
            for m in range(modes):
                if m != slack and counts[m]:
                    rest -= counts[m] * ends[m, at[m]]
                    total += counts[m] * watts[m, at[m]]
            x = rest / counts[slack]
            if total < best and -_EPS <= x <= ends[slack, sizes[slack] - 1] + _EPS:
                x = min(max(x, 0.0), ends[slack, sizes[slack] - 1])
                total += counts[slack] * _power(table[slack], lengths[slack], x)[0]
                if total < best:
                    best = total
                    for m in range(modes):
                        loads[m] = ends[m, at[m]] if counts[m] else 0.0
                    loads[slack] = x
            # The next combination of ends of the other modes, as an odometer.
            m = 0
            while m < modes and (m == slack or counts[m] == 0 or at[m] == sizes[m] - 1):
                if m != slack:
                    at[m] = 0
                m += 1
            if m == modes:
                break
            at[m] += 1
    return best


@compiled
def _counts(tp: Ints, gpu: Ints, available: Ints, top: Floats, need: float) -> Ints:
    """Lists all counts that fit the GPUs and carry the need: (vectors, modes)."""
    modes = tp.size
    most = np.array([available[gpu[m]] // tp[m] for m in range(modes)])
    found = np.empty((int(np.prod(most + 1)), modes), np.int64)
    n = 0
    now = np.zeros(modes, np.int64)
    while True:
        used = np.zeros(available.size, np.int64)
        carries = 0.0
        for m in range(modes):
            used[gpu[m]] += now[m] * tp[m]
            carries += now[m] * top[m]
        if carries >= need * (1.0 - _EPS) and np.all(used <= available):
            found[n] = now
            n += 1
        m = 0
        while m < modes and now[m] == most[m]:
            now[m] = 0
            m += 1
        if m == modes:
            return found[:n].copy()
        now[m] += 1


@compiled
def search(
    tp: Ints, gpu: Ints, available: Ints, lengths: Ints, table: Floats, load: float, need: float
) -> tuple[float, Ints, Floats, Floats]:
    """Finds the least power, and for each mode its count, the load of one instance and its clock; infinite: nothing
    fits.

    Args:
        tp: GPUs of an instance, (modes,).
        gpu: The type of each mode, a place in `available`.
        available: GPUs of each type.
        lengths: Pieces of each mode.
        table: The pieces: (modes, pieces, [LOW, HIGH, LOW_W, HIGH_W, MHZ]).
        load: Requests/s that the power is computed at.
        need: Requests/s that the mix could carry.
    """
    modes = tp.size
    ends, watts, sizes = _curves(lengths, table)
    top, idle_w = np.zeros(modes), watts[:, 0].copy()
    for m in range(modes):
        top[m] = ends[m, sizes[m] - 1]
    vectors = _counts(tp, gpu, available, top, need)
    slopes = _slopes(ends, watts, sizes)
    bounds = np.empty(vectors.shape[0])
    for v in range(vectors.shape[0]):
        bounds[v] = _bound(vectors[v], idle_w, slopes, load)
    best, found = np.inf, -1
    loads, trial, clock = np.zeros(modes), np.zeros(modes), np.zeros(modes)
    for v in np.argsort(bounds, kind="mergesort"):
        if bounds[v] >= best:
            break
        power = _share(vectors[v], ends, watts, sizes, table, lengths, load, trial)
        if power < best:
            best, found = power, v
            loads[:] = trial
    if found < 0:
        return np.inf, np.zeros(modes, np.int64), loads, clock
    for m in range(modes):
        clock[m] = _power(table[m], lengths[m], loads[m])[1]
    return best, vectors[found], loads, clock
