"""What is read off runs: a run's own figure, or one run against another; and how figures are written in words.

Each is a value that can be called with the results, so that tables know which runs it is of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

Figures = Mapping[str, Any]  # of a run, as `runs.runner.run_scenario` gives them
Results = Mapping[str, Figures]  # by the run's label
Measure = Callable[[Results], float | None]  # None: the runs do not have it

CALCULATED = "calculated"  # in the place of a run's label: the figures that no run has

# What is bought with attainment: a saving of one of these is shown beside it.
SPENT = frozenset({"energy_wh", "carbon_g", "cost_usd", "gpu_hours", "power_w", "mean_power_w"})


def in_words(value: float) -> str:
    """Writes a value to three digits: 0.0123, 12.3, 12,300."""
    short = f"{value:.3g}"
    return short if "e+" not in short else f"{float(short):,.0f}"


def _read(results: Results, run: str, name: str, quantile: str | None) -> float | None:
    value = results[run][name] if quantile is None else results[run][name][quantile]
    return None if value is None else float(value)


@dataclass(frozen=True, slots=True)
class Own:
    """A run's own figure; of a latency, one of its quantiles or the mean."""

    of: str
    name: str
    quantile: str | None = None
    scale: float = 1.0

    def __call__(self, results: Results) -> float | None:
        value = _read(results, self.of, self.name, self.quantile)
        return None if value is None else self.scale * value


@dataclass(frozen=True, slots=True)
class Versus:
    """A run's figure against another's: the saving, the change or the gain in per cent, or how many times as much
    `against` has."""

    of: str
    against: str
    name: str
    quantile: str | None
    form: Literal["saving", "change", "times", "gain"]

    def __call__(self, results: Results) -> float | None:
        mine = _read(results, self.of, self.name, self.quantile)
        other = _read(results, self.against, self.name, self.quantile)
        over_own = self.form in ("times", "gain")
        if mine is None or other is None or not (mine if over_own else other):
            return None
        if over_own:
            return other / mine if self.form == "times" else 100.0 * (other / mine - 1.0)
        return 100.0 * (1.0 - mine / other) if self.form == "saving" else 100.0 * (mine / other - 1.0)


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of several comparisons, in the unit of each."""

    parts: tuple[Versus, ...]

    def __call__(self, results: Results) -> float | None:
        found = [part(results) for part in self.parts]
        known = [value for value in found if value is not None]
        return sum(known) / len(known) if len(known) == len(found) else None


@dataclass(frozen=True, slots=True)
class SavingInAll:
    """The saving in per cent over several runs together; each part is a run, its baseline, and how often they count."""

    parts: tuple[tuple[str, str, float], ...]
    name: str = "energy_wh"

    def __call__(self, results: Results) -> float | None:
        own = self._sum(results, [(of, weight) for of, _, weight in self.parts])
        other = self._sum(results, [(against, weight) for _, against, weight in self.parts])
        return None if own is None or not other else 100.0 * (1.0 - own / other)

    def _sum(self, results: Results, runs: Sequence[tuple[str, float]]) -> float | None:
        found = [(_read(results, run, self.name, None), weight) for run, weight in runs]
        known = [weight * value for value, weight in found if value is not None]
        return sum(known) if len(known) == len(found) else None


@dataclass(frozen=True, slots=True)
class Steps:
    """Says how much of a published shape holds where a paper gives no figures.

    It is the share, in per cent, of the steps from one measure to the next that go up, or down.
    """

    parts: tuple[Measure, ...]
    down: bool = False

    def __call__(self, results: Results) -> float | None:
        known = [value for part in self.parts if (value := part(results)) is not None]
        if len(known) < len(self.parts):
            return None
        ways = [(after < before) if self.down else (after > before) for before, after in pairwise(known)]
        return 100.0 * sum(ways) / len(ways)


@dataclass(frozen=True, slots=True)
class Quotient:
    """One measure over another."""

    over: Measure
    under: Measure

    def __call__(self, results: Results) -> float | None:
        over, under = self.over(results), self.under(results)
        return None if over is None or not under else over / under


@dataclass(frozen=True, slots=True)
class TokensPerJ:
    """Tokens a joule of the requests of a run that kept their objectives."""

    of: str

    def __call__(self, results: Results) -> float | None:
        own = results[self.of]
        return float(own["goodput_tokens_s"] * own["simulated_s"] / (own["energy_wh"] * 3600.0))


@dataclass(frozen=True, slots=True)
class Calculated:
    """A figure that no run has: worked out from profiles or the engine model. Tables say so.

    Results that have CALCULATED have it there, by its name, or not yet; for others it is worked out, which may take
    seconds.
    """

    name: str
    work_out: Callable[[], float]

    def __call__(self, results: Results) -> float | None:
        if CALCULATED not in results:
            return self.work_out()
        value = results[CALCULATED].get(self.name)
        return None if value is None else float(value)


Pair = tuple[str, str | None]  # labels of the run that saves, and of the one that it is compared with


def pairs_of(measure: Measure) -> tuple[Pair, ...]:
    """Returns the runs by which a measure tells of what is spent; empty: it does not."""
    match measure:
        case Versus(of=of, against=against, name=name) if name in SPENT:
            return ((of, against),)
        case Own(of=of, name=name) if name in SPENT:
            return ((of, None),)
        case TokensPerJ(of=of):
            return ((of, None),)
        case SavingInAll(parts=parts, name=name) if name in SPENT:
            return tuple((of, against) for of, against, _ in parts)
        case Mean(parts=parts) | Steps(parts=parts):
            return tuple(pair for part in parts for pair in pairs_of(part))
    return ()


def figure(of: str, name: str, quantile: str | None = None, scale: float = 1.0) -> Own:
    """Makes a measure: a run's own figure."""
    return Own(of, name, quantile, scale)


def saving(of: str, against: str, name: str = "energy_wh", quantile: str | None = None) -> Versus:
    """Makes a measure: the saving in per cent of `against`; below zero it took more."""
    return Versus(of, against, name, quantile, "saving")


def change(of: str, against: str, name: str, quantile: str | None = None) -> Versus:
    """Makes a measure: the change in per cent of `against`; of a latency, that of one of its quantiles."""
    return Versus(of, against, name, quantile, "change")


def gain(of: str, against: str, name: str = "energy_wh") -> Versus:
    """Makes a measure: how many per cent more comes of one unit of `name` than with `against`."""
    return Versus(of, against, name, None, "gain")


def times(of: str, against: str, name: str = "energy_wh", quantile: str | None = None) -> Versus:
    """Makes a measure: how many times as much `against` took."""
    return Versus(of, against, name, quantile, "times")
