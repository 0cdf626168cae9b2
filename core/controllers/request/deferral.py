"""Schedules work that can wait: in the cleanest of the time that is left before its deadlines.

Lines of batches are alike, and so many a second can be done. Time ahead is cut into stretches of one intensity, at the
steps of the forecast and at the deadlines. For each deadline in turn, what must be done by then takes the cheapest room
that is left before it. That is optimal: in any better plan a line outside the cheapest room of the first deadline could
be swapped into it at no loss, and so on for the next (the exchange argument of matroids). Of equals the earlier one is
taken.

A step whose intensity is missing is no guess: it is used only when those that are known do not suffice for a deadline,
and then the earliest first. What cannot be done in time even at full speed is begun at once; its rest expires.

Only the first stretch of a plan is acted on. The plan is made again when it ends, or sooner, with what is then known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from core.types import Alternative, Effects, Rationale, Reason, RunDeferred, SiteView
from core.units import J_PER_KWH

EPS = 1e-9


@dataclass(frozen=True, slots=True)
class Backlog:
    """Lines of one batch that are still to be done."""

    name: str
    lines: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class DeferralObservation:
    """One service's batches. `sites`: where it runs, with the GPUs that it has there; steps of intensity begin now.

    `lines_per_s`: learned while lines ran; None: nothing has run yet. `energy_j_per_line`: at the meter, PUE included.
    """

    now_s: float
    service: str
    step_s: float
    sites: tuple[SiteView, ...]
    backlogs: tuple[Backlog, ...]
    lines_per_s: float | None = None
    energy_j_per_line: float | None = None


@dataclass(frozen=True, slots=True)
class DeferralConfig:
    """The rate is a guess, so plans count on `1 / caution` of it, and on being done `reserve_s` early.

    Both only bring work forward: what is in time without them is in time with them.
    """

    caution: float = 2.0
    reserve_s: float = 60.0
    probe_lines: int = 8  # to learn a rate from

    def __post_init__(self) -> None:
        if self.caution < 1.0 or self.reserve_s < 0.0 or self.probe_lines < 1:
            raise ValueError("deferral needs caution >= 1, reserve_s >= 0 and probe_lines >= 1")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time of one intensity, and the lines planned for it."""

    start_s: float
    end_s: float
    g_per_kwh: float | None
    lines: float = 0.0


@dataclass(frozen=True, slots=True)
class DeferralPlan:
    """`late_lines`: more than can be done in time at the rate that is counted on."""

    stretches: tuple[Stretch, ...]
    late_lines: float

    @property
    def runs_now(self) -> bool:
        return bool(self.stretches) and self.stretches[0].lines > EPS

    @property
    def begins(self) -> Stretch | None:
        return next((stretch for stretch in self.stretches if stretch.lines > EPS), None)


def step(
    state: DeferralPlan | None, observation: DeferralObservation, config: DeferralConfig
) -> tuple[DeferralPlan, Effects]:
    """Plans anew, whatever the last plan was; commands `RunDeferred` when lines are to run now.

    `next_tick_s`: when the decision no longer holds. Backlogs whose deadline has passed are no longer anybody's to do.
    """
    open_ones = tuple(b for b in observation.backlogs if b.deadline_s - observation.now_s > EPS and b.lines)
    observation = replace(observation, backlogs=open_ones)
    intensity = grid_intensity(observation.sites)
    lines = sum(backlog.lines for backlog in observation.backlogs)
    if not lines:
        return DeferralPlan((), 0.0), Effects((), None, Rationale(Reason.NO_CHANGE, "No line waits."))
    if observation.lines_per_s is None:
        return _probe(observation, intensity, min(lines, config.probe_lines), config)
    made = plan(observation, intensity, observation.lines_per_s / config.caution, config.reserve_s)
    first = made.stretches[0]
    rationale = _rationale(made, observation, intensity, config)
    if not made.runs_now:
        return made, Effects((), first.end_s, rationale)
    command = RunDeferred(observation.service, math.ceil(first.lines - EPS), first.end_s)
    return made, Effects((command,), first.end_s, rationale)


def grid_intensity(sites: Sequence[SiteView]) -> tuple[float | None, ...]:
    """Returns the gCO2e of a kWh that the service draws from the grid, by step: the mean by its GPUs at each site and
    their PUE.

    A site whose feed knows nothing at all is left out. A step that another site lacks is missing: means over different
    sites cannot be compared.
    """
    weighted = [(max(0, sum(site.gpus.values())) * site.pue, site) for site in sites]
    if not any(weight for weight, _ in weighted):  # it runs nowhere yet
        weighted = [(site.pue, site) for site in sites]
    known = [
        (w, s.intensity_g_per_kwh) for w, s in weighted if w > 0 and any(v is not None for v in s.intensity_g_per_kwh)
    ]
    steps = max((len(site.intensity_g_per_kwh) for site in sites), default=0)
    total = sum(weight for weight, _ in known)
    found: list[float | None] = []
    for index in range(steps):
        values = [(weight, row[index] if index < len(row) else None) for weight, row in known]
        if not values or any(value is None for _, value in values):
            found.append(None)
        else:
            found.append(sum(weight * value for weight, value in values if value is not None) / total)
    return tuple(found)


def plan(
    observation: DeferralObservation, intensity: Sequence[float | None], lines_per_s: float, reserve_s: float = 0.0
) -> DeferralPlan:
    """Plans the cheapest lines of each stretch such that every deadline is kept, as far as `lines_per_s` allows.

    Deadlines lie ahead, and there is at least one.
    """
    now_s = observation.now_s
    due: dict[float, int] = {}
    for backlog in observation.backlogs:
        deadline_s = backlog.deadline_s - reserve_s
        if deadline_s - now_s <= EPS:  # within the reserve: what is left of it is all there is
            deadline_s = backlog.deadline_s
        due[deadline_s] = due.get(deadline_s, 0) + backlog.lines
    stretches = _stretches(now_s, observation.step_s, intensity, due)
    order = sorted(range(len(stretches)), key=lambda i: _rank(stretches[i]))
    taken = [0.0] * len(stretches)
    late = 0.0
    for deadline_s in sorted(due):
        need = float(due[deadline_s])
        for i in order:
            stretch = stretches[i]
            if need <= EPS:
                break
            if stretch.end_s <= deadline_s:
                took = min(need, (stretch.end_s - stretch.start_s) * lines_per_s - taken[i])
                taken[i] += took
                need -= took
        late += need if need > EPS else 0.0
    return DeferralPlan(tuple(replace(s, lines=n) for s, n in zip(stretches, taken, strict=True)), late)


def _rank(stretch: Stretch) -> tuple[bool, float, float]:
    """Returns the order in which room is used: known before unknown, clean before dirty, early before late."""
    g = stretch.g_per_kwh
    return g is None, 0.0 if g is None else g, stretch.start_s


def _stretches(
    now_s: float, step_s: float, intensity: Sequence[float | None], deadlines: Collection[float]
) -> list[Stretch]:
    last_s = max(deadlines)
    edges = {now_s + step_s * i for i in range(len(intensity) + 1)} | set(deadlines) | {now_s}
    cut = sorted(edge for edge in edges if now_s <= edge <= last_s)
    found = []
    for start_s, end_s in pairwise(cut):
        if end_s - start_s > EPS:
            index = math.floor(((start_s + end_s) / 2 - now_s) / step_s)
            found.append(Stretch(start_s, end_s, intensity[index] if index < len(intensity) else None))
    return found


# -- why -------------------------------------------------------------------------------------------


def _probe(
    observation: DeferralObservation, intensity: Sequence[float | None], lines: int, config: DeferralConfig
) -> tuple[DeferralPlan, Effects]:
    end_s = observation.now_s + observation.step_s
    made = DeferralPlan((Stretch(observation.now_s, end_s, intensity[0] if intensity else None, lines),), 0.0)
    summary = f"Runs {_lines(lines)} of {observation.service} to learn how fast they go: none has run yet."
    rationale = Rationale(Reason.NO_DATA, summary, _inputs(observation, intensity, config))
    return made, Effects((RunDeferred(observation.service, lines, end_s),), end_s, rationale)


def _rationale(
    made: DeferralPlan, observation: DeferralObservation, intensity: Sequence[float | None], config: DeferralConfig
) -> Rationale:
    lines = sum(backlog.lines for backlog in observation.backlogs)
    now_g, first = (intensity[0] if intensity else None), made.stretches[0]
    whole = f"{_lines(lines)} of {observation.service}"
    reason = Reason.OPTIMAL
    if made.late_lines:
        reason = Reason.INFEASIBLE
        late = math.ceil(made.late_lines)
        summary = f"Runs {whole} at once: at the rate counted on {late} would miss their deadline."
    elif made.runs_now and now_g is None:
        reason = Reason.NO_DATA
        summary = f"Runs {whole} now: the deadline needs it, and how clean the grid is now is not known."
    elif made.runs_now and any(_rank(stretch) < _rank(first) for stretch in made.stretches):
        summary = f"Runs {whole} now at {now_g:.0f} g/kWh: all cleaner time before the deadline is needed as well."
    elif made.runs_now:
        summary = f"Runs {whole} now: at {now_g:.0f} g/kWh no known time before the deadline is cleaner."
    else:  # for time that is known: unknown time is never waited for
        then = made.begins or first
        than = "now is not known" if now_g is None else f"now {now_g:.0f}"
        summary = (
            f"{whole} wait {_span(then.start_s - observation.now_s)}: then {then.g_per_kwh or 0.0:.0f} g/kWh, {than}."
        )
    return Rationale(reason, summary, _inputs(observation, intensity, config), _alternatives(made, observation, config))


def _alternatives(
    made: DeferralPlan, observation: DeferralObservation, config: DeferralConfig
) -> tuple[Alternative, ...]:
    """Returns the alternatives: the plan, and doing all at once."""
    assert observation.lines_per_s is not None
    left, at_once = sum(stretch.lines for stretch in made.stretches), []
    for stretch in made.stretches:
        took = min(left, (stretch.end_s - stretch.start_s) * observation.lines_per_s / config.caution)
        at_once.append(replace(stretch, lines=took))
        left -= took
    each_j = observation.energy_j_per_line
    energy_j = None if each_j is None else each_j * sum(stretch.lines for stretch in made.stretches)
    return (
        Alternative("As planned", chosen=True, energy_j=energy_j, carbon_gco2e=_grams(made.stretches, each_j)),
        Alternative("All at once", energy_j=energy_j, carbon_gco2e=_grams(at_once, each_j)),
    )


def _grams(stretches: Sequence[Stretch], each_j: float | None) -> float | None:
    used = [stretch for stretch in stretches if stretch.lines > EPS]
    if each_j is None or any(stretch.g_per_kwh is None for stretch in used):
        return None
    return sum(s.lines * each_j / J_PER_KWH * s.g_per_kwh for s in used if s.g_per_kwh is not None)


def _inputs(
    observation: DeferralObservation, intensity: Sequence[float | None], config: DeferralConfig
) -> dict[str, object]:
    known = [value for value in intensity if value is not None]
    return {
        "lines": sum(backlog.lines for backlog in observation.backlogs),
        "batches": len(observation.backlogs),
        "first_deadline_in_s": round(min(b.deadline_s for b in observation.backlogs) - observation.now_s, 1),
        "lines_per_s": observation.lines_per_s,
        "caution": config.caution,
        "reserve_s": config.reserve_s,
        "g_per_kwh_now": intensity[0] if intensity else None,
        "g_per_kwh_least": min(known, default=None),
        "known_for_s": len(known) * observation.step_s,
    }


def _lines(count: int) -> str:
    return f"{count} line{'' if count == 1 else 's'}"


def _span(seconds: float) -> str:
    for unit, name in ((3600.0, "h"), (60.0, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} s"
