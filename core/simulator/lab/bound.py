"""A lower bound for the energy of every policy, from the requests as they came: what hindsight would have run.

For each minute it takes the fleet of least cost, of all sites, types, TP degrees and counts, which may change for
nothing from minute to minute.

- Counts: the minute's requests, with their own times, prompts and limits, come again on so many instances as the fleet
  loop lets them (`core.algorithms.fleet.arrival_replay`), at the top clock, with prompts in chunks of whichever length
  of `_CHUNKS` has the fewest late. As many may be late as `GOAL` leaves over all minutes, in those minutes in which
  that saves most. A prompt that no kind of instance serves in time by itself does not count.
- Power: what all instances draw idle at their lowest clock, and the least that the work takes above that
  (`core.simulator.lab.least_work`): every iteration at its own clock, answers sharing iterations as the limits allow.

So chunks, clocks and the floor of clocks are free, and nothing here is a policy's. It neglects what costs every policy
something: servers start and drain; loads are not known beforehand; a minute leaves work to the next; answers are at
several instances, and do not share iterations as well as at one; a clock is chosen before the next request is known;
answers go on after the last request. It is no proof: it rests on the engine model, and on the replay, whose order (the
shortest prompt first, at the instance that is done first) may not be the best there is.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.algorithms.fleet.arrival_replay import Again, EngineLoad, Replay
from core.algorithms.fleet.arrival_replay import Arrivals as Came
from core.algorithms.fleet.site_mix import Mix, Offer, SiteMode, best_mix
from core.engine.compiled_model import model_row
from core.engine.engine_model import EngineModel, engine_model
from core.engine.load_profile import LoadProfile
from core.engine.steady_state import largest_batch
from core.simulator.kernel.arrivals import Arrivals
from core.simulator.kernel.outcome import Floats, Ints
from core.simulator.kernel.simulated import SimulationError
from core.simulator.lab.least_work import PRICES_W, Work, idle_w, least_work
from core.simulator.policies.world import World
from core.simulator.scenario.layout import limits_of, world_of
from core.simulator.scenario.scenario import Scenario
from core.types import Limits, Mode

MINUTE_S = 60.0
GOAL = 0.99  # of requests in time
_LATE = np.array([0.0, 0.003, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32])  # of an interval's requests: what is weighed
_LENGTHS = ("prompt_tokens", "output_tokens")
_CHUNKS = (512, 1024, 2048)
_SLACK = 1.0 + 1e-9  # so that so many instances carry all in spite of rounding
_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class Interval:
    """What came in an interval (the last one may be shorter), and the fleet for it.

    `fit` None: no request came, or no fleet carries what came (`short`).
    """

    span_s: float
    rps: float
    fit: Mix | None

    @property
    def short(self) -> bool:
        return self.fit is None and self.rps > 0.0


@dataclass(frozen=True, slots=True)
class Bound:
    """`short`: intervals in which no fleet carries what came, which cost nothing here. `carbon_g`: None where an
    intensity is not known; else it is what was made least, and the energy is that of the same fleets. `keeps`: whether
    any fleets keep `GOAL`; else it is of fleets with as few late ones as can be.
    """

    energy_wh: float
    gpu_hours: float
    intervals: tuple[Interval, ...]
    short: int
    carbon_g: float | None = None
    keeps: bool = True


def least_energy(scenario: Scenario, blocks: Iterable[Arrivals], stays: bool = False) -> Bound:
    """Computes the bound of a scenario with one service.

    Args:
        stays: The least of a fleet that stays the same for all of the time.

    Raises:
        SimulationError: More than one service, or no request.
    """
    if len(scenario.services) != 1:
        raise SimulationError("the bound is of one service; split the scenario")
    work = _work(scenario, list(blocks))
    end_s = max(float(work.at_s[-1]), 1.0)
    minutes = max(1, round(end_s / MINUTE_S))
    edges_s = np.append(np.arange(minutes) * MINUTE_S, end_s)
    found = _Hindsight(scenario, work.until(end_s + MINUTE_S), edges_s)
    each = minutes if stays else 1
    return _least([found.choices(first, first + each) for first in range(0, minutes, each)], len(work))


@dataclass(frozen=True, slots=True)
class _Choices:
    """Fleets that an interval may have, with the fewest requests late on each (`late`). `clean`: whether carbon
    is what they cost."""

    span_s: float
    rps: float
    fits: tuple[Mix, ...]
    late: tuple[int, ...]
    clean: bool


def _least(intervals: Sequence[_Choices], requests: int) -> Bound:
    """Chooses for all intervals together, as Lagrange has it: with a price for each late request at which no more are
    late than may be. What is chosen costs the least at this price. Less the price of those that may be late and are
    not, it is no more than any choice costs that has so few late ones."""
    costs = [np.array([fit.cost * own.span_s for fit in own.fits]) for own in intervals]
    late = [np.array(own.late, np.float64) for own in intervals]
    known = [n for n, own in enumerate(intervals) if own.fits]
    goal, fewest = math.floor((1.0 - GOAL) * requests), sum(float(late[n].min()) for n in known)
    allowed = max(float(goal), fewest)
    if len(known) == 1:  # then there is nothing to weigh a late request against
        costs = [np.where(own_late <= allowed, own, np.inf) for own, own_late in zip(costs, late, strict=True)]

    def best(price: float) -> dict[int, int]:
        return {n: int(np.argmin(costs[n] + price * late[n])) for n in known}

    def too_many(price: float) -> bool:
        return sum(float(late[n][k]) for n, k in best(price).items()) > allowed

    price, step = 0.0, max((float(np.ptp(costs[n])) for n in known), default=0.0)
    for _ in range(_HALVINGS if too_many(price) else 0):
        price, step = price + step if too_many(price + step) else price, step / 2.0
    chosen = {n: intervals[n].fits[k] for n, k in best(price).items()}
    spent = sum(fit.cost * intervals[n].span_s for n, fit in chosen.items())
    least = spent + price * (sum(late[n][k] for n, k in best(price).items()) - allowed)
    share = least / spent if spent else 1.0
    joules = sum(fit.watts * intervals[n].span_s for n, fit in chosen.items())
    gpu_s = sum(part.count * part.mode.tp * intervals[n].span_s for n, fit in chosen.items() for part in fit.parts)
    made = tuple(Interval(own.span_s, own.rps, chosen.get(n)) for n, own in enumerate(intervals))
    clean = all(own.clean for own in intervals)
    short = sum(own.short for own in made)
    carbon_g = share * spent / 3.6e6 if clean else None
    return Bound(share * joules / 3600.0, gpu_s / 3600.0, made, short, carbon_g, fewest <= goal)


class _Hindsight:
    """Knows all requests of a load, and what they take on each kind of instance."""

    def __init__(self, scenario: Scenario, work: Work, edges_s: Floats) -> None:
        self._world, self._work, self._edges_s = world_of(scenario), work, edges_s
        self._answer_tokens = float(work.output.mean())
        service = self._world.services[0]
        modes = {mode for site in self._world.sites for mode in self._world.modes(service, site.name)}
        self._engines = {mode: engine_model(service.model, mode.gpu, mode.tp, service.engine) for mode in sorted(modes)}
        self._takes = {mode: least_work(engine, work, edges_s) for mode, engine in self._engines.items()}
        self._room: dict[SiteMode, int] = {
            (site.name, mode): site.gpus.get(mode.gpu, 0) // mode.tp
            for site in self._world.sites
            for mode in self._world.modes(service, site.name)
        }
        self._most = {
            mode: sum(room for (_, other), room in self._room.items() if other == mode) for mode in self._engines
        }

    def choices(self, first: int, last: int) -> _Choices:
        """Returns those of an interval: of minutes up to, and without, the last."""
        from_s, to_s = self._edges_s[[first, last]].tolist()
        span_s = to_s - from_s
        worths, clean = _worths(self._world, from_s, to_s)
        begin, end = np.searchsorted(self._work.at_s, [from_s, to_s]).tolist()
        end = len(self._work) if last == self._edges_s.size - 1 else end
        if begin == end:
            return _Choices(span_s, 0.0, (), (), clean)
        own = self._work.part(begin, end)
        rps = len(own) / span_s
        budgets = np.unique(np.append(np.rint(_LATE * len(own)).astype(np.int64), len(own)))
        counts = self._counts(own, budgets)
        fits, late = [], []
        for n, least in enumerate((0, *(budgets[:-1] + 1).tolist())):
            fit = best_mix(self._offers(counts, n, slice(first, last), rps, worths), rps, rps, Limits())
            if fit is not None and not fit.short:
                fits.append(fit)
                late.append(least)
        return _Choices(span_s, rps, tuple(fits), tuple(late), clean)

    def _counts(self, own: Work, budgets: Ints) -> dict[Mode, list[int | None]]:
        """Returns the fewest instances of each kind on which no more are late than each budget; None: on all of them
        more are."""
        rows = {mode: model_row(engine) for mode, engine in self._engines.items()}
        found: dict[Mode, list[int | None]] = {mode: [None] * budgets.size for mode in rows}
        for chunk in _CHUNKS:
            load = EngineLoad(self._answer_tokens, self._work.context_tokens, chunk, self._work.pace_s)
            again = Again(Came(own.at_s, own.prompt, own.ttft_s), load, 1.0, rows.values())
            for mode, row in rows.items():
                late = _Late(Replay(row, again, _places(self._engines[mode], self._work)), int(budgets[-2]))
                counts = [late.fewest(self._most[mode], allowed) for allowed in budgets.tolist()]
                found[mode] = [_fewer(*both) for both in zip(counts, found[mode], strict=True)]
        return found

    def _offers(
        self,
        counts: Mapping[Mode, Sequence[int | None]],
        n: int,
        minutes: slice,
        rps: float,
        worths: Mapping[str, float],
    ) -> list[Offer]:
        found = []
        profiles: dict[Mode, LoadProfile] = {}
        for (site, mode), room in self._room.items():
            count = counts[mode][n]
            if count is None or not room:
                continue
            if mode not in profiles:
                profiles[mode] = self._profile(mode, minutes, rps, count)
            found.append(Offer(mode, profiles[mode], room, site, worths[site]))
        return found

    def _profile(self, mode: Mode, minutes: slice, rps: float, count: int) -> LoadProfile:
        """Returns the least power of an instance by its load, up to what `count` of them need each to carry all.

        In each minute each price of time gives a line below it. Loads are those of 1, 2, 3 ... instances, and those at
        which lines cross.
        """
        takes, spans_s = self._takes[mode], np.diff(self._edges_s)[minutes]
        joules, seconds = takes.joules[:, minutes], takes.seconds[minutes]
        most = min(1.0 / count, float((spans_s / np.maximum(seconds, 1e-12)).min())) * _SLACK
        crossings = np.diff(PRICES_W)[:, None] * spans_s / np.maximum(np.diff(joules, axis=0), 1e-12)
        even = 1.0 / np.arange(1, 1 + max(self._most[mode], count))
        within = np.concatenate([even, crossings.ravel() if joules.shape[1] == 1 else []])
        shares = np.unique(np.concatenate([[0.0, most], within[within < most]]))
        lines = shares[:, None, None] * joules - PRICES_W[:, None] * spans_s  # (loads, prices, minutes)
        above_w = np.maximum(0.0, lines.max(axis=1)).sum(axis=1) / spans_s.sum()
        engine, none = self._engines[mode], np.zeros((1, shares.size))
        watts = idle_w(engine) + above_w
        return LoadProfile(np.array([engine.gpu_params.f_max]), rps * shares[None], none, none, watts[None])


class _Late:
    """Remembers how many are late on how many instances; more than `most` are as good as all."""

    def __init__(self, replay: Replay, most: int) -> None:
        self._replay, self._most = replay, most
        self._known: dict[int, int] = {}

    def fewest(self, room: int, allowed: int) -> int | None:
        """Returns the fewest instances, of `room`, on which no more are late than are allowed; None: on all of them
        more are."""
        counts = range(1, room + 1)
        if allowed > self._most:
            return counts[0] if counts else None
        found = bisect_left(counts, True, key=lambda count: self._on(count) <= allowed)
        return counts[found] if found < room else None

    def _on(self, count: int) -> int:
        if count not in self._known:
            self._known[count] = self._replay.late_on(count, self._most)
        return self._known[count]


def _fewer(one: int | None, other: int | None) -> int | None:
    return min((count for count in (one, other) if count is not None), default=None)


def _places(engine: EngineModel, work: Work) -> float:
    """Returns the answers that an instance has under way at most."""
    return max(1.0, largest_batch(engine, work.context_tokens, 0.0, work.context_tokens))


def _worths(world: World, from_s: float, to_s: float) -> tuple[dict[str, float], bool]:
    """Returns what a watt is worth at each site, PUE included: its mean intensity; where that is not known of all sites
    1, and False."""
    found = {}
    for site in world.sites:
        value = next(iter(world.intensity(site.name, from_s, to_s, to_s - from_s)), None)
        if value is None:
            return {own.name: own.pue for own in world.sites}, False
        found[site.name] = site.pue * value
    return found, True


def _work(scenario: Scenario, blocks: Sequence[Arrivals]) -> Work:
    """Returns the requests with the limits of their classes. Raises SimulationError: there is none."""
    if not blocks:
        raise SimulationError("the load is empty: no request to bound")
    service = scenario.services[0]
    at_s = np.concatenate([block.arrival_s for block in blocks])
    prompt, output = (np.concatenate([getattr(block, name) for block in blocks]) for name in _LENGTHS)
    limits = [limits_of(own.slo) for own in service.classes]
    class_of = np.array(service.cells.classes(service.partitions[0]))[service.cells.of_lengths(prompt, output)]

    def limit_s(of: Callable[[Limits], float | None]) -> Floats:
        known = np.array([math.inf if (value := of(own)) is None else value for own in limits])
        found: Floats = known[class_of]
        return found

    ttft_s, tpot_s = limit_s(lambda own: own.ttft_s), limit_s(lambda own: own.tpot_s)
    e2e_s = limit_s(lambda own: own.e2e_s)
    answers = np.maximum(output - 1.0, 0.0)
    paced_s = ttft_s + np.where(answers > 0.0, np.maximum(answers, 1.0) * tpot_s, 0.0)
    return Work(at_s, prompt.astype(np.float64), output.astype(np.float64), ttft_s, at_s + np.minimum(paced_s, e2e_s))
