"""Forecasts of load by a template of the week (DynamoLLM IV-B and IV-E: history models the pattern over a week).

A series (a request class, in requests or prompt tokens a second) is kept as the peak 5-second rate of each step of the
week, for the last few weeks. What a step will bring is a percentile of what the same step, and its neighbours, brought
in the weeks before. A template only knows what it has seen; each answer says what it rests on:

- `week`: the same time of the same weekday in earlier weeks;
- `day`: the same time of other days of the same kind (working days, weekends), in a first week;
- `recent`: nothing of that time was ever seen, or what came recently lies above its own template by more than
  `tolerance`: then what was seen recently is the least that is expected;
- `none`: the series was never seen. The rate is None, not 0.

State is a value: `observe` returns a new one, sharing what did not change, and `to_json` and `from_json` store it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from core.observations.demand.class_arrivals import STRETCH_S

DAY_S, WEEK_S = 86_400.0, 604_800.0
_FIRST_SATURDAY_S = 2.0 * DAY_S  # Unix time begins on a Thursday

Sample = tuple[int, float]  # (step since the epoch, peak rate)


class Basis(StrEnum):
    WEEK = "week"
    DAY = "day"
    RECENT = "recent"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TemplateConfig:
    """`utc_offset_s` is the site's, so that days begin at its midnight. `neighbours`: steps on either side that count
    as the same time. `weeks` are kept; `recent_steps` are what "recent" means."""

    step_s: float = 300.0
    weeks: int = 4
    percentile: float = 0.95
    neighbours: int = 1
    recent_steps: int = 6
    tolerance: float = 0.25
    utc_offset_s: float = 0.0

    def __post_init__(self) -> None:
        if self.step_s < STRETCH_S or DAY_S % self.step_s or self.step_s % STRETCH_S:
            raise ValueError(f"a step is whole stretches of {STRETCH_S:g} s, and a day whole steps")
        if not 0.0 <= self.percentile <= 1.0 or self.weeks < 1 or self.neighbours < 0 or self.recent_steps < 1:
            raise ValueError("percentile lies between 0 and 1; at least one week and one recent step are kept")

    @property
    def recent_s(self) -> float:
        """Says how far back "recent" reaches, in s."""
        return self.recent_steps * self.step_s

    @property
    def steps_a_week(self) -> int:
        return round(WEEK_S / self.step_s)

    @property
    def steps_a_day(self) -> int:
        return round(DAY_S / self.step_s)

    def step_of(self, at_s: float) -> int:
        """Returns the steps of local time since a Saturday's midnight, so that a week is Saturday, Sunday, five working
        days."""
        return math.floor((at_s + self.utc_offset_s - _FIRST_SATURDAY_S) / self.step_s + 1e-9)


@dataclass(frozen=True, slots=True)
class PeakHistory:
    """Peaks by step of the week, newest last, and the newest step seen."""

    slots: Mapping[int, tuple[Sample, ...]] = field(default_factory=dict)
    last_step: int = 0


@dataclass(frozen=True, slots=True)
class LoadHistory:
    """All series by name. Their unit is the caller's: what `observe` counted, a second."""

    series: Mapping[str, PeakHistory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The peak 5-second rate of each step asked for, and what each rests on."""

    rates: tuple[float | None, ...]
    bases: tuple[Basis, ...]

    def peak(self, first: int = 0, last: int | None = None) -> float | None:
        """Returns the highest of the steps [first, last); None when any of them is unknown, or there is none."""
        chosen = self.rates[first:last]
        known = [rate for rate in chosen if rate is not None]
        return max(known) if known and len(known) == len(chosen) else None

    @property
    def basis(self) -> Basis:
        """The weakest of them."""
        return max(self.bases, key=list(Basis).index, default=Basis.NONE)


def observe(
    history: LoadHistory, name: str, start_s: float, amounts: Sequence[float], config: TemplateConfig
) -> LoadHistory:
    """Adds what came in consecutive stretches of 5 s, the first beginning at `start_s`; zeros count as seen.

    A step's peak is the highest of its stretches, so that telling a stretch twice changes nothing and a step may come
    in parts. Steps older than the weeks kept are dropped.
    """
    peaks: dict[int, float] = {}
    for number, amount in enumerate(amounts):
        step = config.step_of(start_s + number * STRETCH_S)
        peaks[step] = max(peaks.get(step, 0.0), amount / STRETCH_S)
    if not peaks:
        return history
    old = history.series.get(name, PeakHistory(last_step=max(peaks)))
    slots = dict(old.slots)
    for step, peak in sorted(peaks.items()):
        slot = step % config.steps_a_week
        slots[slot] = _with(slots.get(slot, ()), step, peak)[-config.weeks :]
    series = {**history.series, name: PeakHistory(slots, max(old.last_step, *peaks))}
    return replace(history, series=series)


def _with(samples: tuple[Sample, ...], step: int, peak: float) -> tuple[Sample, ...]:
    known = dict(samples)
    known[step] = max(peak, known.get(step, 0.0))
    return tuple(sorted(known.items()))


def forecast(history: LoadHistory, name: str, start_s: float, steps: int, config: TemplateConfig) -> Forecast:
    """Forecasts the next `steps` steps, the first being the one that `start_s` lies in."""
    series = history.series.get(name)
    if series is None or not series.slots:
        return Forecast((None,) * steps, (Basis.NONE,) * steps)
    first = config.step_of(start_s)
    recent = _recent(series, first, config)
    missed = _missed(series, recent, config)
    floor = max((peak for _, peak in recent), default=None)
    answers = [_step(series, step, floor, missed, config) for step in range(first, first + steps)]
    return Forecast(tuple(rate for rate, _ in answers), tuple(basis for _, basis in answers))


def _step(
    series: PeakHistory, step: int, floor: float | None, missed: bool, config: TemplateConfig
) -> tuple[float | None, Basis]:
    rate, basis = _template(series, step, config)
    if rate is None:
        return (floor, Basis.RECENT) if floor is not None else (None, Basis.NONE)
    if missed and floor is not None and floor > rate:
        return floor, Basis.RECENT
    return rate, basis


def _template(series: PeakHistory, step: int, config: TemplateConfig) -> tuple[float | None, Basis]:
    """Returns the load that the time of `step` brought before it, and how closely it is the same time."""
    near = range(step - config.neighbours, step + config.neighbours + 1)
    same = _samples(series, near, step, config)
    if same:
        return _percentile(same, config.percentile), Basis.WEEK
    day, days_a_week = config.steps_a_day, 7
    weekday = (step // day) % days_a_week
    # The week begins on a Saturday: days 0 and 1 are a weekend.
    kin = [d - weekday for d in range(days_a_week) if d != weekday and (d < 2) == (weekday < 2)]
    others = _samples(series, [at + days * day for days in kin for at in near], step, config)
    return (_percentile(others, config.percentile), Basis.DAY) if others else (None, Basis.NONE)


def _samples(series: PeakHistory, steps: Iterable[int], before: int, config: TemplateConfig) -> list[float]:
    """Peaks at these times of the week, of any week, seen well before: what came just now is not a pattern."""
    horizon = before - config.steps_a_day // 2
    found = []
    for step in steps:
        for at, peak in series.slots.get(step % config.steps_a_week, ()):
            if at < horizon:
                found.append(peak)
    return found


def _recent(series: PeakHistory, now_step: int, config: TemplateConfig) -> list[Sample]:
    """Returns the newest steps seen, the present one included, not older than twice what "recent" means."""
    newest = min(series.last_step, now_step)
    oldest = max(newest - config.recent_steps + 1, now_step - 2 * config.recent_steps)
    return [
        sample
        for step in range(oldest, newest + 1)
        for sample in series.slots.get(step % config.steps_a_week, ())
        if sample[0] == step
    ]


def _missed(series: PeakHistory, recent: Sequence[Sample], config: TemplateConfig) -> bool:
    """Says whether the recent load lies above what the template would have said of the same steps."""
    seen = said = 0.0
    for step, peak in recent:
        rate, _ = _template(series, step, config)
        if rate is not None:
            seen, said = max(seen, peak), max(said, rate)
    return seen > (1.0 + config.tolerance) * said


def _percentile(values: Sequence[float], share: float) -> float:
    """Returns a percentile, linear between ranks."""
    ordered = sorted(values)
    rank = share * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (rank - low) * (ordered[high] - ordered[low])


def to_json(history: LoadHistory) -> dict[str, Any]:
    """Returns the history as JSON, from which `from_json` makes the same one."""
    return {
        name: {
            "last_step": series.last_step,
            "slots": {str(slot): [list(sample) for sample in samples] for slot, samples in series.slots.items()},
        }
        for name, series in history.series.items()
    }


def from_json(stored: Mapping[str, Any]) -> LoadHistory:
    """Reads what `to_json` wrote."""
    return LoadHistory(
        {
            name: PeakHistory(
                {
                    int(slot): tuple((int(step), float(peak)) for step, peak in samples)
                    for slot, samples in series["slots"].items()
                },
                int(series["last_step"]),
            )
            for name, series in stored.items()
        }
    )
