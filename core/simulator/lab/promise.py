"""All policies on all scenarios of faults and rare traffic, and on the conversation hour's fleet under given traces.

Says who keeps the objectives, with how much energy, and what each of greenserve's means does for that. The figures are
kept beside the page that has the tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.observations.limits import lacks_pace
from core.policy.presets import PRESETS
from core.simulator import shipped_scenarios
from core.simulator.lab.bound import least_energy
from core.simulator.lab.experiment import CONVERSATION, Table
from core.simulator.lab.found import Found
from core.simulator.lab.measures import CALCULATED, Figures
from core.simulator.lab.runs import is_public
from core.simulator.runs.runner import requests_of
from core.simulator.runs.simulation_jobs import SimulationJob
from core.simulator.scenario.layout import limits_of
from core.simulator.scenario.scenario import read_scenario

BEGIN, END = "<!-- promise: begin -->", "<!-- promise: end -->"
YARDSTICK, OURS = "single_pool", "greenserve"
POLICIES = (
    *(YARDSTICK, "threshold", "dynamollm", "freesh", "min_energy", "throttllem", "muserve", "dynaserve"),
    *("greenserve_epochs", OURS),
)
# What `greenserve` is without one of its means.
WITHOUT = {
    "counts by what came again": "tuning: {right_size: {replay: false}}",
    "the error budget": "tuning: {right_size: {error_budget: false}}",
    "spare instances at first": "tuning: {right_size: {learn_s: 0}}",
    "clocks by deadlines, by profile instead": "clock: profile",
    "clocks below the voltage's knee": "clock_floor: voltage",
    "routing by backlog, by requests instead": "route: least_loaded",
    "shortest prompt first": "order: fcfs",
    "prompts in chunks": "chunk_tokens: 0",
}
RARE = ("night", "step", "spikes", "heaps", "long-among-short", "wrong-lengths", "feed-gone", "site-dark")
KEEPS, YARDSTICK_KEEPS = 0.99, 0.995  # of requests in time
# More requests than these are minutes or hours of computing: these policies judge each request against a projection, or
# (`muserve`, which begins with what is declared) weigh a queue that grows.
MOST_REQUESTS = {"throttllem": 50_000, "muserve": 100_000, "dynaserve": 100_000}
MOST_WITHOUT = 30_000  # requests of a row that is also run without one mean after the other

_HOUR = "azure-conv-12xh100"
_FIRST_HOUR = ("workload.requests=null", "workload.duration_s=3600")
_TIMES = 17  # as scenarios/dynamollm-70b-h100.yaml has the hour
_HOURS = (f"GPU h of `{OURS}`", "of the bound", "of the fleet that stays")
_COUNT, _RATE = "requests", "rate_rps"
_BOUNDS = {"bound": False, "stays": True}  # of a fleet that changes each minute, and of one that stays


class PromiseError(ValueError):
    """A page without a place for the table, or a name that is none; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row: a scenario with what is put over it, and the trace that takes its generator's place."""

    name: str
    scenario: str
    settings: tuple[str, ...] = ()
    trace: Path | None = None

    @property
    def file(self) -> Path:
        return shipped_scenarios.folder() / f"{self.scenario}.yaml"


def cases(traces: Sequence[Path] = (), rare: Sequence[str] = RARE) -> tuple[Case, ...]:
    """Returns all rows: `rare` scenarios, then the first hour of each trace at its own rate, and the conversation hour
    at 17 times its own.

    Where the conversation hour is not among the traces the scenario generates requests like it.

    Raises:
        OSError: A trace cannot be read.
    """
    conversation = next((trace for trace in traces if is_public(trace, CONVERSATION)), None)
    own = [Case(f"{_HOUR}, {_stem(trace)}", _HOUR, _FIRST_HOUR, trace) for trace in traces]
    if conversation is None:
        own.insert(0, Case(f"{_HOUR}, generated", _HOUR, _FIRST_HOUR))
    many = f"{_HOUR}, {'generated' if conversation is None else _stem(conversation)}, {_TIMES} times"
    busy = Case(many, _HOUR, (*_FIRST_HOUR, f"workload.rate_scale={_TIMES}"), conversation)
    return (*(Case(name, name) for name in rare), *own, busy)


def chosen(every: Sequence[Case], names: Sequence[str]) -> tuple[Case, ...]:
    """Returns the rows whose scenarios are named; no name: all of them. Raises PromiseError."""
    if unknown := [name for name in names if name not in {case.scenario for case in every}]:
        known = ", ".join(dict.fromkeys(case.scenario for case in every))
        raise PromiseError(f"there is no scenario '{unknown[0]}' here; there are: {known}")
    return tuple(case for case in every if not names or case.scenario in names)


def loads_of(case: Case) -> dict[str, float]:
    """Returns how many requests a row has, and their rate: over the time in which they arrive.

    Raises:
        ScenarioError: The scenario cannot be used.
        TraceError: The trace cannot be used.
    """
    scenario = read_scenario(case.file, case.settings)
    count, last_s = 0, 0.0
    for block in requests_of(scenario, case.trace).blocks():
        count, last_s = count + len(block), float(block.arrival_s[-1])
    return {_COUNT: float(count), _RATE: count / last_s if last_s else math.nan}


def bounds_of(case: Case) -> dict[str, float]:
    """Returns the energy and the GPU-hours of a row's bounds; NaN where no fleet keeps the objectives, or has room.

    Raises:
        ScenarioError: The scenario cannot be used.
        TraceError: The trace cannot be used.
        SimulationError: It is not one of which a bound is known.
    """
    scenario = read_scenario(case.file, case.settings)
    blocks = list(requests_of(scenario, case.trace).blocks())
    found = {}
    for name, stays in _BOUNDS.items():
        bound = least_energy(scenario, blocks, stays)
        known = bound.keeps and not bound.short
        found[f"{name}_wh"] = bound.energy_wh if known else math.nan
        found[f"{name}_gpu_hours"] = bound.gpu_hours if known else math.nan
    return found


def runs_on(load: Mapping[str, float]) -> tuple[str, ...]:
    """Returns what is run on a row of this load: the policies, and `greenserve` without each of its means."""
    return (*POLICIES, *(WITHOUT if load[_COUNT] <= MOST_WITHOUT else ()))


def left_out(case: Case, policy: str, load: Mapping[str, float]) -> str:
    """Says why a policy is not run on a row of this load; empty: it is. Raises ScenarioError."""
    most = MOST_REQUESTS.get(policy, math.inf)
    if load[_COUNT] > most:
        return f"not run on more than {most:,} requests, which takes it long"
    own = PRESETS[OURS if policy in WITHOUT else policy]
    for service in read_scenario(case.file, case.settings).services:
        limits = [limits_of(each.slo) for each in service.classes]
        if words := lacks_pace(own.knobs.clock, own.knobs.admission, own.tuning.throttle.tbt_s, limits):
            return f"not run: {words}"
    return ""


def job_of(case: Case, name: str) -> SimulationJob:
    """Returns the run of a policy on a row, or of `greenserve` without one of WITHOUT, as a value that other processes
    can do."""
    place = None if case.trace is None else str(case.trace.resolve())
    policy = f"{OURS} {{{WITHOUT[name]}}}" if name in WITHOUT else name
    return SimulationJob(str(case.file), case.settings, policy, place)


def _stem(trace: Path) -> str:
    return trace.name.partition(".")[0]


def found_of(load: Mapping[str, float], results: Mapping[str, Figures], failed: Mapping[str, str]) -> Found:
    """Joins a row's load with the figures of its policies; `failed`: why there are none, by policy."""
    return Found({**results, CALCULATED: load}, failed)


# -- the table -------------------------------------------------------------------------------------


def table(kept: Mapping[str, Found]) -> Table:
    """Returns the table of what was found, a row for each case by its name."""
    head = ("scenario", "requests/s", *(f"`{policy}`" for policy in POLICIES), "does not hold")
    return Table("", head, tuple(_row(name, found) for name, found in kept.items()))


def table_without(kept: Mapping[str, Found]) -> Table:
    """Returns the table of `greenserve` without each of its means, a row for each case that has such runs."""
    head = ("scenario", f"`{OURS}`", *(f"without {name}" for name in WITHOUT))
    shown = {name: found.runs for name, found in kept.items() if not WITHOUT.keys().isdisjoint(found.runs)}
    rows = ((name, *(_cell(runs.get(own), None) for own in (OURS, *WITHOUT))) for name, runs in shown.items())
    return Table("", head, tuple(rows))


def table_bounds(kept: Mapping[str, Found]) -> Table:
    """Returns the table of `greenserve` beside the bounds, a row for each case whose bounds were computed."""
    head = ("scenario", f"`{OURS}`", "bound", "times the bound", "a fleet that stays", "times that", *_HOURS)
    rows = [_row_bounds(name, found) for name, found in kept.items() if f"{next(iter(_BOUNDS))}_wh" in _known(found)]
    return Table("", head, tuple(rows))


def _known(found: Found) -> Figures:
    return found.results[CALCULATED]


def _row_bounds(name: str, found: Found) -> tuple[str, ...]:
    own = found.runs.get(OURS, {})
    energy_wh, cells = own.get("energy_wh"), []
    for bound in _BOUNDS:
        least_wh = _known(found)[f"{bound}_wh"]
        times = None if least_wh is None or energy_wh is None else energy_wh / least_wh
        cells += [_number(least_wh, ",.0f"), _number(times, ".2f")]
    hours = (own.get("gpu_hours"), *(_known(found)[f"{bound}_gpu_hours"] for bound in _BOUNDS))
    return name, _number(energy_wh, ",.0f"), *cells, *(_number(value, ".1f") for value in hours)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, form)


def _row(name: str, found: Found) -> tuple[str, ...]:
    rate_rps = found.results[CALCULATED][_RATE]
    known = {policy: found.runs[policy] for policy in POLICIES if policy in found.runs}
    runs = {policy: own for policy, own in known.items() if own["slo_attainment"] is not None}
    keeping = {policy: own["energy_wh"] for policy, own in runs.items() if own["slo_attainment"] >= KEEPS}
    least = min(keeping.values(), default=None)
    cells = [_cell(runs.get(policy), least if policy in keeping else None) for policy in POLICIES]
    return name, "-" if rate_rps is None else f"{rate_rps:.3g}", *cells, ", ".join(broken(found)) or "-"


def _cell(own: Figures | None, least_wh: float | None) -> str:
    """Writes a run's energy and share; bold where it is the least of those that keep the objectives."""
    if own is None:
        return "-"
    words = f"{own['energy_wh']:,.0f} ({_percent(own['slo_attainment'])})"
    return f"**{words}**" if own["energy_wh"] == least_wh else words


def _percent(share: float) -> str:
    """Writes per cent, cut off and not rounded: what is below a limit does not look as if it were at it."""
    return f"{math.floor(share * 1e4 + 1e-6) / 100:.2f}"


def broken(found: Found) -> list[str]:
    """Says which of the two policies whose share is promised do not have it, with the share that they have."""
    runs = found.runs
    needed = {OURS: KEEPS, YARDSTICK: YARDSTICK_KEEPS}
    return [
        f"`{policy}` {_percent(runs[policy]['slo_attainment']) if policy in runs else 'not run'}"
        for policy, share in needed.items()
        if policy not in runs or runs[policy]["slo_attainment"] < share
    ]


def written(kept: Mapping[str, Found]) -> str:
    """Writes the table as Markdown, with what it means above it, and below it why cells are empty."""
    own = table(kept)
    keeps, yardstick = f"{100 * KEEPS:g} %", f"{100 * YARDSTICK_KEEPS:g} %"
    about = (
        "Energy in Wh, and in brackets the per cent of requests in time. Bold: the least energy of the policies that\n"
        f"keep {keeps}. The last column has `{OURS}` where it does not keep {keeps}, and `{YARDSTICK}` where it does\n"
        f"not keep {yardstick}: there the fleet is small for the load."
    )
    why: dict[tuple[str, str], list[str]] = {}
    for name, found in kept.items():
        for policy, words in found.failed.items():
            why.setdefault((policy, words), []).append(name)
    reasons = [f"- `{policy}` ({'; '.join(names)}): {words}" for (policy, words), names in why.items()]
    less = table_without(kept)
    most = f"of at most {MOST_WITHOUT:,} requests"
    parts = [about, _markdown(own), "\n".join(reasons)]
    if less.rows:
        parts += [f"`{OURS}` without one of its means, on the rows {most}, as above:", _markdown(less)]
    bounds = table_bounds(kept)
    if bounds.rows:
        words = f"`{OURS}` beside the bounds for {keeps} in time (energy in Wh; the last three columns are GPU-hours):"
        parts += [words, _markdown(bounds)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(own: Table) -> str:
    return "\n".join([_line(own.head), f"|{'---|' * len(own.head)}", *map(_line, own.rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def put_into(page: str, text: str) -> str:
    """Returns a page with the text between the two markers, in place of what is there. Raises PromiseError."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PromiseError(f"the page has no place for the table; put these two lines where it is to be: {BEGIN} {END}")
    return f"{before}{BEGIN}\n{text}{END}{after}"
