"""The mix of instances of least cost for a load: which kinds, how many, at which sites and clocks.

An integer program over sites x types of GPU x TP degrees x clocks, solved without a solver. All instances of a site
carry the same part of what each of them can, so that the power of a site with given counts (a layout) is a function of
its load alone, each instance at its best clock. Of each site's layouts the cheapest is found for every one of `UNITS`
equal parts of the load, and the parts are shared out among sites by dynamic programming: exact but for that grain.
What a site may not do (more power than its cap, more changes than its budget) leaves layouts out, so that it holds
whatever is cheap. FREESH's eq. 1 is the same choice with one operating point a mode, made each half hour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from core.engine.load_profile import LoadProfile
from core.types import Limits, Mode

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SiteMode = tuple[str, Mode]  # (site, mode)

UNITS = 60  # parts of the load that sites share
_LEVELS = 48  # of a curve: shares of what an instance carries
_MOST_LAYOUTS = 4000  # of a site; beyond, one mode of a type fills up and others have at most `_FEW`
_FEW = 2
_MOST_KEPT = 8  # layouts of a site whose parts are known: a turn looks at few
_ROOM = 1.5  # for load, where a limit is too narrow for any
_EPS = 1e-9
_LEAST_G_PER_KWH = 1.0  # where power is free of carbon, or better, less of it is still better
_ANY_RPS = 1e-6  # without traffic somebody is to be there all the same
_SHARES = np.arange(UNITS + 1) / UNITS
_USED = np.linspace(0.0, 1.0, _LEVELS)


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A kind of instance: its profile at the lengths now seen, and how many there is room for.

    `site`: where; empty: the pool's. `per_watt`: what a watt is worth there, in the same unit for all offers (g/kWh for
    least carbon); 1: power itself is made least. Offers of one type of GPU at a site share its GPUs.
    `keeps`: the part of the load ahead whose TTFT one of them keeps, beside what its profile says.
    """

    mode: Mode
    profile: LoadProfile
    room: int
    site: str = ""
    per_watt: float = 1.0
    keeps: float = math.inf

    @property
    def kind(self) -> SiteMode:
        return self.site, self.mode


@dataclass(frozen=True, slots=True)
class SiteRule:
    """The rules that a site's layout must keep.

    `cap_w`: most that its instances may draw, each at its highest, those that still stand beside the new ones included.
    `changes`: most starts and stops from `asked`. `least`, `most`: counts by mode that it must not fall below, or
    exceed. None: no such rule.
    """

    cap_w: float | None = None
    standing: Mapping[Mode, int] = field(default_factory=dict)
    changes: int | None = None
    asked: Mapping[Mode, int] = field(default_factory=dict)
    least: Mapping[Mode, int] | None = None
    most: Mapping[Mode, int] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """`count` instances of a kind, each at `mhz` under `load_rps`; `watts` of all of them."""

    site: str
    mode: Mode
    count: int
    mhz: float
    load_rps: float
    watts: float
    per_watt: float = 1.0

    @property
    def kind(self) -> SiteMode:
        return self.site, self.mode


@dataclass(frozen=True, slots=True)
class Mix:
    """`short`: it does not carry what is needed, or not in time (`Offer.keeps`), and nothing that the rules of sites
    leave does more."""

    parts: tuple[Part, ...]
    short: bool = False

    @property
    def watts(self) -> float:
        return math.fsum(part.watts for part in self.parts)

    @property
    def cost(self) -> float:
        return math.fsum(part.watts * part.per_watt for part in self.parts)

    @property
    def workers(self) -> dict[SiteMode, int]:
        return {part.kind: part.count for part in self.parts}


def most_load_rps(offer: Offer, limits: Limits) -> float:
    """Returns the largest load, in requests/s, that one instance of an offer carries within the limits; 0: none."""
    return _curve(offer.profile, limits).most_rps


def any_keeps(offers: Sequence[Offer], limits: Limits) -> bool:
    """Says whether any of the offers carries any load within the limits."""
    return any(most_load_rps(offer, limits) > 0.0 for offer in offers)


def in_time(offers: Sequence[Offer], limits: Limits, left_s: Iterable[float]) -> Limits:
    """Adds to the limits the TPOT, in s, that answers have left of their E2E limits (FREESH eq. 1e), where some
    offer keeps that."""
    tpots_s = [*left_s, *(own for own in (limits.tpot_s,) if own is not None)]
    timely = Limits(limits.ttft_s, min(tpots_s, default=None))
    return timely if any_keeps(offers, timely) else limits


def worth_per_watt(pue: float, g_per_kwh: float | None) -> float:
    """Returns the weight of a watt at the GPUs of a site; an intensity of None means that only energy counts."""
    return pue * (1.0 if g_per_kwh is None else max(g_per_kwh, _LEAST_G_PER_KWH))


def kept_by_some(offers: Sequence[Offer], limits: Limits) -> Limits:
    """Returns the limits; each that no offer keeps even without load as wide as the best one's latency then, and some
    room."""

    def widened(limit: float | None, of: Callable[[LoadProfile], Floats]) -> float | None:
        if limit is None or not offers:
            return limit
        return max(limit, _ROOM * min(float(of(offer.profile)[-1, 0]) for offer in offers))

    if any_keeps(offers, limits):
        return limits
    return Limits(widened(limits.ttft_s, lambda own: own.ttft_s), widened(limits.tpot_s, lambda own: own.tpot_s))


def best_mix(
    offers: Sequence[Offer],
    rps: float,
    need_rps: float,
    limits: Limits,
    rules: Mapping[str, SiteRule] | None = None,
) -> Mix | None:
    """Returns the mix of least cost under `rps` that has capacity for `need_rps` within the limits, at the top clock.

    Each site keeps the same share of room to spare, and as much of the load in time (`Offer.keeps`) as it gets. Where
    nothing carries it, the one that carries most. None: there is nothing that keeps the limits at all.
    """
    sites: dict[str, list[Offer]] = {}
    for offer in offers:
        if most_load_rps(offer, limits) > 0.0:
            sites.setdefault(offer.site, []).append(offer)
    tables = [_Table(own, limits, (rules or {}).get(site, SiteRule())) for site, own in sorted(sites.items())]
    if not tables:
        return None
    most_rps = math.fsum(table.most_rps for table in tables)
    need_rps = max(need_rps, _ANY_RPS)
    short = need_rps > most_rps * (1.0 + _EPS)
    if short:
        rps, need_rps = rps * most_rps / need_rps, most_rps
    kept = min(1.0, math.fsum(table.keeps for table in tables))
    late = kept < min(1.0, math.fsum(table.most_keeps for table in tables)) * (1.0 - _EPS)
    shares = _shared(tables, rps, need_rps, kept)
    if shares is None:
        return None
    parts = [part for table, own in zip(tables, shares, strict=True) for part in table.parts(*own, rps)]
    return Mix(tuple(parts), short or late or sum(units for units, _ in shares) < UNITS)


def _shared(tables: Sequence[_Table], rps: float, need_rps: float, kept: float) -> list[tuple[int, int]] | None:
    """Returns the parts of the load of each site and its layout, by min-plus convolution; all `UNITS` of them, or as
    many as can be placed."""
    if len(tables) == 1:
        row = tables[0].cheapest(rps, need_rps, kept)
        if row is not None:
            return [(UNITS, row)]
    back = np.arange(UNITS + 1)[:, None] - np.arange(UNITS + 1)[None, :]
    total = np.where(np.arange(UNITS + 1) == 0, 0.0, np.inf)
    taken: list[tuple[Ints, Ints]] = []
    for table in tables:
        rows, costs = table.by_units(rps, need_rps, kept)
        sums = np.where(back >= 0, total[np.maximum(back, 0)], np.inf) + costs[None, :]
        taken.append((np.argmin(sums, axis=1), rows))
        total = np.min(sums, axis=1)
    reached = np.flatnonzero(np.isfinite(total))
    if not reached.size:
        return None
    left, shares = int(reached[-1]), []
    for own, rows in reversed(taken):
        units = int(own[left])
        shares.append((units, int(rows[units])))
        left -= units
    return shares[::-1]


@dataclass(frozen=True, slots=True, eq=False)
class _Curve:
    """The curve of one instance: the load that it carries within limits, and its least power at shares of that
    (`_LEVELS` of them)."""

    most_rps: float
    watts: Floats
    highest_w: float  # at any clock and load: what a cap counts on


@lru_cache(maxsize=1024)
def _curve(profile: LoadProfile, limits: Limits) -> _Curve:
    most_rps = max(0.0, float(profile.top().within(limits)[0]))
    _, watts = _by_clock(profile, limits, np.linspace(0.0, most_rps, _LEVELS))
    return _Curve(most_rps, watts.min(axis=0), float(profile.watts.max()))


def _by_clock(profile: LoadProfile, limits: Limits, loads_rps: Floats) -> tuple[Floats, Floats]:
    """Returns clocks, and the power at each of them (rows) under each load; infinite where it does not keep
    the limits."""
    ttft_s, tpot_s, watts = profile.at(loads_rps)
    keeps = np.isfinite(watts)
    for values, limit in ((ttft_s, limits.ttft_s), (tpot_s, limits.tpot_s)):
        if limit is not None:
            keeps &= values <= limit + _EPS
    return profile.mhz, np.where(keeps, watts, np.inf)


class _Layouts:
    """The layouts of one site, whatever its rule: what they carry, keep and cost."""

    def __init__(self, offers: tuple[Offer, ...], limits: Limits, asked: tuple[int, ...]) -> None:
        self.offers, self._limits = offers, limits
        self.curves = [_curve(offer.profile, limits) for offer in offers]
        counts = _layouts(tuple((offer.mode.gpu, offer.mode.tp, offer.room) for offer in offers))
        own = np.array([asked], np.int64)
        if (own <= counts.max(axis=0)).all() and not (counts == own).all(axis=1).any():
            counts = np.vstack([counts, own])  # between the steps of a large site
        self.counts = counts
        self.carries = counts @ np.array([own.most_rps for own in self.curves])
        self.keeps = counts @ np.minimum(1.0, [offer.keeps for offer in offers])
        self._watts: dict[bytes, Floats] = {}
        self._parts: dict[tuple[int, float], list[Part]] = {}

    def watts(self, loads_rps: Floats) -> Floats:
        """Returns the power of each layout at each load, (layouts, loads); `loads_rps` is (loads,)."""
        key = loads_rps.tobytes()
        watts = self._watts.get(key)
        if watts is None:
            carries = self.carries[:, None]
            used = np.divide(loads_rps, carries, out=np.zeros((len(carries), loads_rps.size)), where=carries > 0.0)
            watts = np.zeros_like(used)
            for counts, curve in zip(self.counts.T, self.curves, strict=True):
                watts += counts[:, None] * np.interp(used, _USED, curve.watts)
            self._watts = {key: watts}
        return watts

    def parts(self, row: int, rps: float) -> list[Part]:
        """Returns the instances of a layout under a load."""
        parts = self._parts.get((row, rps))
        if parts is None:
            used = rps / self.carries[row] if self.carries[row] else 0.0
            shown = zip(self.offers, self.curves, self.counts[row].tolist(), strict=True)
            parts = [self._part(*own, used) for own in shown if own[2]]
            if len(self._parts) >= _MOST_KEPT:
                self._parts.clear()
            self._parts[row, rps] = parts
        return parts

    def _part(self, offer: Offer, curve: _Curve, count: int, used: float) -> Part:
        load_rps = float(used * curve.most_rps)
        mhz, watts = _by_clock(offer.profile, self._limits, np.array([load_rps]))
        best = int(np.argmin(watts[:, 0]))
        drawn_w = count * float(watts[best, 0])
        return Part(offer.site, offer.mode, count, float(mhz[best]), load_rps, drawn_w, offer.per_watt)


@lru_cache(maxsize=16)
def _layouts_of(offers: tuple[Offer, ...], limits: Limits, asked: tuple[int, ...]) -> _Layouts:
    return _Layouts(offers, limits, asked)  # which a turn looks at by one rule after the other


class _Table:
    """The layouts of one site that keep its rule, and the cheapest of them for each part of the load."""

    def __init__(self, offers: Sequence[Offer], limits: Limits, rule: SiteRule) -> None:
        self._all = _layouts_of(tuple(offers), limits, tuple(rule.asked.get(offer.mode, 0) for offer in offers))
        self.most_keeps = float(self._all.keeps.max())
        self._rows = np.flatnonzero(_allowed(self._all.counts, offers, self._all.curves, rule))
        self._carries = self._all.carries[self._rows]
        self.most_rps = float(self._carries.max())
        self._keeps = self._all.keeps[self._rows]
        self.keeps = float(self._keeps.max())

    def by_units(self, rps: float, need_rps: float, kept: float) -> tuple[Ints, Floats]:
        """Returns the layouts that carry 0 to `UNITS` parts of the load, and what they cost, both (UNITS + 1,);
        infinite where no layout carries them."""
        costs = self._costs(rps * _SHARES, need_rps * _SHARES, kept * _SHARES)
        return costs.argmin(axis=0), costs.min(axis=0)

    def cheapest(self, rps: float, need_rps: float, kept: float) -> int | None:
        """Returns the layout that carries the whole load; None: there is none."""
        costs = self._costs(np.array([rps]), np.array([need_rps]), np.array([kept]))[:, 0]
        best = int(np.argmin(costs))
        return best if np.isfinite(costs[best]) else None

    def _costs(self, loads_rps: Floats, need_rps: Floats, kept: Floats) -> Floats:
        """Returns the cost of each layout at each load, (layouts, loads)."""
        enough = (self._carries[:, None] >= need_rps * (1.0 - _EPS)) & (self._keeps[:, None] >= kept * (1.0 - _EPS))
        return np.where(enough, self._all.watts(loads_rps)[self._rows] * self._all.offers[0].per_watt, np.inf)

    def parts(self, units: int, row: int, rps: float) -> list[Part]:
        """Returns the instances of a layout under so many parts of the load."""
        return self._all.parts(int(self._rows[row]), rps * units / UNITS)


def _allowed(counts: Ints, offers: Sequence[Offer], curves: Sequence[_Curve], rule: SiteRule) -> NDArray[np.bool_]:
    """Says which layouts keep the rule, (layouts,).

    The cap comes first: where it leaves no other way, changes are not counted.
    """

    def of(given: Mapping[Mode, int]) -> Ints:
        return np.array([given.get(offer.mode, 0) for offer in offers], np.int64)

    kept = np.ones(len(counts), bool)
    if rule.cap_w is not None:
        highest_w, standing = np.array([own.highest_w for own in curves]), of(rule.standing)
        beside = np.maximum(counts, standing) @ highest_w <= rule.cap_w
        kept = (counts @ highest_w <= rule.cap_w) & (beside | (counts <= standing).all(axis=1))
    if rule.least is not None:
        kept = kept & (counts >= of(rule.least)).all(axis=1)
    if rule.most is not None:
        kept = kept & (counts <= of(rule.most)).all(axis=1)
    if rule.changes is not None:
        few = kept & (np.abs(counts - of(rule.asked)).sum(axis=1) <= rule.changes)
        kept = few if few.any() else kept
    return kept if kept.any() else (counts == 0).all(axis=1)


@lru_cache(maxsize=256)
def _layouts(kinds: tuple[tuple[str, int, int], ...]) -> Ints:
    """Lists the counts of each (type of GPU, TP degree, room) that fit the site, nothing at all among them: (layouts,
    kinds)."""
    types = sorted({gpu for gpu, _, _ in kinds})
    by_type = []
    for gpu in types:
        own = [(n, tp, room) for n, (other, tp, room) in enumerate(kinds) if other == gpu]
        found = _of_type([(tp, room) for _, tp, room in own], round(_MOST_LAYOUTS ** (1.0 / len(types))))
        counts = np.zeros((len(found), len(kinds)), np.int64)
        counts[:, [n for n, _, _ in own]] = found
        by_type.append(counts)
    total = by_type[0]
    for counts in by_type[1:]:
        total = (total[:, None, :] + counts[None, :, :]).reshape(-1, len(kinds))
    return total


def _of_type(kinds: Sequence[tuple[int, int]], most: int) -> Ints:
    """Lists the counts of each (TP degree, room) on the GPUs that they share; not many more than `most` of them.

    Where there are more, one kind fills up, in steps, and of the others there are at most `_FEW`.
    """
    tps, rooms = zip(*kinds, strict=True)
    if math.prod(room + 1 for room in rooms) <= most * math.factorial(len(kinds)):
        ranges = [[range(room + 1) for room in rooms]]
    else:
        steps = max(2, most // (len(kinds) * (_FEW + 1) ** (len(kinds) - 1)))
        few = [range(min(room, _FEW) + 1) for room in rooms]
        fill = [np.unique(np.linspace(0, room, min(room + 1, steps)).round().astype(int)).tolist() for room in rooms]
        ranges = [[fill[n] if n == filler else own for n, own in enumerate(few)] for filler in range(len(kinds))]
    found = np.unique(np.array([counts for own in ranges for counts in product(*own)], np.int64), axis=0)
    return np.asarray(found[found @ np.array(tps) <= max(tp * room for tp, room in kinds)])
