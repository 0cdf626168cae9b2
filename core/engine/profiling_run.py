"""From a profiling run to a profile: repeats of timed and metered iterations, folded into one point each.

A run is a table, one row for each repeat: what was run (mhz, prefill_tokens, batch, context_tokens, as in a profile),
how long it took (t_s, or start_s and end_s of any clock), what the whole instance used meanwhile (watts, or energy_j,
or energy_start_j and energy_end_j of counters; none at all when there was no meter), and how many iterations of that
shape the row spans (`iterations`, 1 if left out): energy counters move every 20 to 100 ms, so a row should last much
longer. context_tokens is then the mean over them. Columns model, gpu, tp and engine, where given, must say the
configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from core.engine.profiles import Point, Profile, ProfileError, Shape, check_grid, given, read_number, read_shape

_OUTLIER_DEVIATIONS = 5.0  # from the median, of a normal distribution with the same MAD
_OUTLIER_SHARE = 0.05  # and at least this share of the median: a MAD of equal values is 0
_MAD_TO_DEVIATION = 1.4826
_FEWEST_FOR_OUTLIERS = 3
_MOST = 1e12  # seconds since 1970, and joules of counters that have run for years


@dataclass(frozen=True, slots=True)
class Outlier:
    """A repeat far from the median of its shape. It stays in the median, which it hardly moves."""

    row: int
    field_name: str  # t_s or watts
    value: float
    median: float


@dataclass(frozen=True, slots=True)
class Run:
    """A profiling run, folded."""

    profile: Profile
    repeats: int
    outliers: tuple[Outlier, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    row: int
    t_s: float  # of one iteration
    watts: float | None


def fold_run(rows: Iterable[Mapping[str, Any]], key: tuple[str, str, int, str]) -> Run:
    """Folds the rows of a run of the configuration (model, gpu, tp, engine): medians, and the spread about them.

    The spread is the relative MAD, unknown when there was one repeat; it becomes the margin of the point. Raises
    ProfileError for a row that cannot be used, for rows of which only some have power, and for a grid with holes.
    """
    repeats: dict[Shape, list[_Repeat]] = {}
    for number, row in enumerate(rows, 1):
        _check_configuration(number, row, key)
        shape = read_shape(number, row, key)
        repeats.setdefault(shape, []).append(_repeat(number, row))
    every = [one for each in repeats.values() for one in each]
    if not every:
        raise ProfileError(None, "file", "no measurements in it")
    unmetered = [one.row for one in every if one.watts is None]
    if unmetered and len(unmetered) < len(every):
        raise ProfileError(min(unmetered), "watts", "missing, though other rows have power or energy")
    outliers: list[Outlier] = []
    points = [_point(shape, each, outliers) for shape, each in repeats.items()]
    check_grid(key, points)
    outliers.sort(key=lambda one: (one.row, one.field_name))
    return Run(Profile(*key, points=tuple(points)), len(every), tuple(outliers))


def _check_configuration(number: int, row: Mapping[str, Any], key: tuple[str, str, int, str]) -> None:
    for name, wanted in zip(("model", "gpu", "tp", "engine"), key, strict=True):
        if given(row, name) and str(row[name]).strip() != str(wanted):
            raise ProfileError(number, name, f"'{row[name]}', but the run is of {wanted}")


def _repeat(number: int, row: Mapping[str, Any]) -> _Repeat:
    iterations = read_number(number, row, "iterations") if given(row, "iterations") else 1.0
    span_s = _time_s(number, row)
    return _Repeat(number, span_s / iterations, _power_w(number, row, span_s))


def _time_s(number: int, row: Mapping[str, Any]) -> float:
    if given(row, "t_s"):
        if given(row, "start_s") or given(row, "end_s"):
            raise ProfileError(number, "t_s", "given beside start_s and end_s: one of the two")
        return read_number(number, row, "t_s")
    if not given(row, "start_s"):
        raise ProfileError(number, "t_s", "missing, and so is start_s")
    start_s, end_s = (read_number(number, row, name, _MOST) for name in ("start_s", "end_s"))
    if end_s <= start_s:
        raise ProfileError(number, "end_s", "not after start_s")
    return end_s - start_s


def _power_w(number: int, row: Mapping[str, Any], span_s: float) -> float | None:
    ways = [name for name in ("watts", "energy_j", "energy_start_j") if given(row, name)]
    if len(ways) > 1:
        raise ProfileError(number, ways[1], f"given beside {ways[0]}: one of the two")
    if not ways:
        if given(row, "energy_end_j"):
            raise ProfileError(number, "energy_start_j", "missing")
        return None
    if ways == ["watts"]:
        return read_number(number, row, "watts")
    if ways == ["energy_j"]:
        return read_number(number, row, "energy_j") / span_s
    start_j, end_j = (read_number(number, row, name, _MOST) for name in ("energy_start_j", "energy_end_j"))
    if end_j < start_j:
        raise ProfileError(number, "energy_end_j", "below energy_start_j: was the counter reset?")
    if end_j == start_j:
        raise ProfileError(number, "energy_end_j", "the counter did not move: time more iterations in a row")
    return (end_j - start_j) / span_s


def _point(shape: Shape, repeats: Sequence[_Repeat], outliers: list[Outlier]) -> Point:
    t_s, t_spread = _fold("t_s", [(one.row, one.t_s) for one in repeats], outliers)
    metered = [(one.row, one.watts) for one in repeats if one.watts is not None]
    watts, watts_spread = _fold("watts", metered, outliers) if metered else (None, None)
    return Point(*shape, t_s, watts, t_spread, watts_spread)


def _fold(name: str, values: Sequence[tuple[int, float]], outliers: list[Outlier]) -> tuple[float, float | None]:
    """Returns the median and the relative MAD; what lies far from the median goes to `outliers`."""
    middle = median(value for _, value in values)
    if len(values) == 1:
        return middle, None
    mad = median(abs(value - middle) for _, value in values)
    far = max(_OUTLIER_DEVIATIONS * _MAD_TO_DEVIATION * mad, _OUTLIER_SHARE * middle)
    if len(values) >= _FEWEST_FOR_OUTLIERS:
        outliers += [Outlier(row, name, value, middle) for row, value in values if abs(value - middle) > far]
    return middle, mad / middle
