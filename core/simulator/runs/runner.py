"""Runs a scenario: requests from its workloads, pools and loops from its policy, figures from its outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from core.algorithms.queue.deadlines import due_by_limits
from core.algorithms.queue.queueing import WINDOW_FACTOR, Order
from core.engine.overheads import clock_switch_s
from core.observations.limits import class_limits
from core.simulator.figures.run_figures import Figures
from core.simulator.figures.run_tables import ParquetSink, Tee
from core.simulator.kernel import kernel
from core.simulator.kernel.arrivals import Arrivals
from core.simulator.kernel.commands import Control
from core.simulator.kernel.driver import MACRO, Stepping, simulate
from core.simulator.kernel.outcome import Floats, Ints, Outcome, Sink
from core.simulator.kernel.simulated import FleetSpec, InstanceSpec, Load, load
from core.simulator.kernel.worlds import cost_row
from core.simulator.policies import FreeshConfig, PolicyConfig, StaticConfig
from core.simulator.policies.dynamollm.config import DynamollmConfig
from core.simulator.scenario.layout import Layout, Traffic, check_load, dynamic_fleet, limits_of, static_fleet
from core.simulator.scenario.scenario import Group, Scenario, Service, policy_of
from core.simulator.site_series import bin_s
from core.simulator.workload import Tally, Workload, merge, stream
from core.types import Limits

AT_HAND = 1_000_000  # requests that are read before a run begins; the rest are streamed


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """A scenario's requests. `first` are those read ahead; `rest` streams the others, once."""

    first: tuple[Arrivals, ...]
    rest: Iterator[Arrivals]
    whole: bool  # nothing is left in `rest`
    tally: Tally

    @property
    def count(self) -> int:
        return sum(len(block) for block in self.first)

    def blocks(self) -> Iterable[Arrivals]:
        return self.first if self.whole else chain(self.first, self.rest)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A finished (or interrupted) run: its figures, and what they were made from."""

    scenario: Scenario
    fleet: FleetSpec
    outcome: Outcome
    figures: dict[str, Any]


def requests_of(scenario: Scenario, trace: Path | None = None, at_hand: int = AT_HAND) -> Requests:
    """Opens the workloads; `trace` takes the place of the (first) service's.

    Raises:
        TraceError: The trace cannot be used.
        ScenarioError: A workload names no source, or has no requests.
    """
    tally, tenants = Tally(), scenario.tenants
    streams = [
        stream(
            service.workload,
            scenario.seed,
            trace if n == 0 else None,
            service=n,
            tenants=tenants if service.workload.tenants else (),
            tally=tally,
        )
        for n, service in enumerate(scenario.services)
    ]
    blocks = merge(streams) if len(streams) > 1 else streams[0]
    first, count = [], 0
    for block in blocks:
        first.append(block)
        count += len(block)
        if count >= at_hand:
            return Requests(tuple(first), blocks, False, tally)
    return Requests(tuple(first), iter(()), True, tally)


class Loader:
    """Makes loads of arrivals: classes, cells, predictions, and what each request takes alone."""

    def __init__(self, scenario: Scenario, reference: Sequence[InstanceSpec]) -> None:
        """Builds a loader. A request of service n is timed alone on instance `reference[n]` (FREESH C.2's Lat)."""
        self._services = scenario.services
        self._cells = [service.cells for service in scenario.services]
        self._class_of_cell = [
            np.array(cells.classes(service.partitions[0]), np.int64)
            for service, cells in zip(self._services, self._cells, strict=True)
        ]
        self._first_class = np.cumsum([0] + [len(service.classes) for service in self._services]).tolist()
        self._first_cell = np.cumsum([0] + [len(cells) for cells in self._cells]).tolist()
        self._rng = [service.predictor.random_stream(scenario.seed, n) for n, service in enumerate(self._services)]
        self._reference = reference
        self._costs = [cost_row(spec) for spec in reference]
        self._limits = _limits_by_class(scenario)
        self._window_factor = _window_factor(scenario)

    def load(self, block: Arrivals) -> Load:
        parts = [self._part(n, service, block) for n, service in enumerate(self._services)]
        if len(parts) == 1:
            return parts[0]
        order = np.argsort(np.concatenate([np.flatnonzero(block.service == n) for n in range(len(parts))]))
        return Load(
            *(np.concatenate(columns)[order] for columns in zip(*(part.columns for part in parts), strict=True))
        )

    def _part(self, n: int, service: Service, block: Arrivals) -> Load:
        mine = slice(None) if len(self._services) == 1 else block.service == n
        at_s, prompt, output = block.arrival_s[mine], block.prompt_tokens[mine], block.output_tokens[mine]
        if not at_s.size:
            return EMPTY
        if not service.decode:
            output = np.ones_like(output)
        cells, spec = self._cells[n], self._reference[n]
        predicted = service.predictor.predict(output, self._rng[n], cells.outputs)
        if block.predicted_tokens is not None:
            recorded = block.predicted_tokens[mine]
            predicted = np.where(recorded > 0, recorded, predicted)
        bare = load(at_s, prompt, output, service.workload.prefix_hit_ratio)

        def alone_s(tokens: Ints) -> Floats:
            found: Floats = kernel.alone_latencies(
                self._costs[n], spec.mhz, spec.tokens_per_iteration, prompt, tokens, bare.cached_tokens
            )
            return found

        lat_s = alone_s(output)
        predicted_cell = cells.of_lengths(prompt, predicted)
        due_s = at_s + self._window_factor * (lat_s if predicted is output else alone_s(predicted))
        for k, limits in self._limits[n]:
            own = self._class_of_cell[n][predicted_cell] == k
            by_limits_s = due_by_limits(at_s[own], predicted[own].astype(np.float64), limits)
            due_s[own] = due_s[own] if by_limits_s is None else by_limits_s
        return replace(
            bare,
            request_class=self._first_class[n] + self._class_of_cell[n][cells.of_lengths(prompt, output)],
            cell=self._first_cell[n] + predicted_cell,
            predicted_tokens=predicted,
            deadline_s=at_s + WINDOW_FACTOR * lat_s,
            due_s=due_s,
            lat_s=lat_s,
            service=np.full(at_s.size, n, np.int64),
            tenant=block.tenant[mine],
        )


def _window_factor(scenario: Scenario) -> float:
    """Returns alpha_LLF of the policy's queues. The window in which tokens count as timely stays the paper's."""
    config = scenario.policy
    if isinstance(config, StaticConfig):
        return config.policy.tuning.queue.window_factor
    return config.window_factor if isinstance(config, FreeshConfig) else WINDOW_FACTOR


def _limits_by_class(scenario: Scenario) -> list[list[tuple[int, Limits]]]:
    """Lists for each service the limits that requests of each class are due by; of the others: by FREESH's window.

    DynamoLLM's queues go by its classes' objectives (IV-D).
    """
    config = scenario.policy
    if not isinstance(config, DynamollmConfig) or config.knobs.order != Order.EDF:
        return [[] for _ in scenario.services]
    return [
        [(k, class_limits(limits_of(own.slo), own.thresholds, config.knobs)) for k, own in enumerate(service.classes)]
        for service in scenario.services
    ]


EMPTY = load([0.0], [1], [1])[:0]


def run_scenario(
    scenario: Scenario,
    requests: Requests,
    policy: str | None = None,
    stepping: Stepping = MACRO,
    on_progress: Callable[[float | None, float], None] | None = None,
    parquet: Path | None = None,
    keep_segments: int = 0,
    most_bin_s: float = math.inf,
    slice_s: float = 600.0,
    probes: Sequence[Control] = (),
) -> Run:
    """Simulates the scenario under its own policy, or another one as `policy_of` reads it.

    `wall_s` among the figures is from the first requests at hand to the figures ready; it has in it the reading of
    those that are streamed.

    Args:
        on_progress: Called with the share done, 0 to 1 (None: unknown), and the simulated time in seconds.
        parquet: A folder for tables, written as requests end.
        most_bin_s: The energy series is at least so fine, and in whole seconds; at least 1.
        slice_s: Simulated seconds after which progress is reported, at the latest.
        probes: Controls beside the policy's, which only look.
    """
    began = time.perf_counter()
    config = policy_of(scenario, policy)
    scenario = replace(scenario, policy=config)
    loader = Loader(scenario, _references(scenario))
    first = [loader.load(block) for block in requests.first]
    layout = _layout(scenario, config, first, requests.whole)
    labels = layout.labels
    figures = Figures(labels)
    tables = None if parquet is None else ParquetSink(parquet, labels)
    sink: Sink = figures if tables is None else Tee([figures, tables])
    blocks: Iterable[Load] = first if requests.whole else chain(first, map(loader.load, requests.rest))
    overheads = scenario.overheads

    def switch_s(spec: InstanceSpec) -> float:
        return 0.0 if spec.costs is not None else clock_switch_s(overheads, spec.gpu, spec.tp)

    def progress(arrived: int, now_s: float) -> None:
        if on_progress is not None:
            on_progress(_share(scenario, requests, arrived, now_s), now_s)

    outcome = simulate(
        layout.fleet,
        blocks,
        stepping=stepping,
        controls=(*layout.controls, *probes),
        router=layout.router,
        clock_switch_s=switch_s,
        sink=sink,
        progress=progress,
        bin_s=bin_s(scenario.sites.values(), most_bin_s),
        keep_segments=keep_segments,
        slice_s=slice_s,
        first_s={control.name: _first_s(scenario, control) for control in layout.controls},
    )
    if tables is not None:
        tables.close(outcome)
    found = figures.summary(outcome, scenario.sites)
    wall_s = time.perf_counter() - began
    head = {
        "scenario": scenario.name,
        "policy": policy or config.name,
        "stepping": stepping.name,
        "mode": stepping.name,  # the name of the field up to 0.1, for one version more
        "seed": scenario.seed,
    }
    tail = {
        "refused_commands": outcome.refused,
        "trace_rows_left_out": requests.tally.failed,
        "wall_s": wall_s,
        "simulated_rps": outcome.requests / wall_s,
    }
    return Run(scenario, layout.fleet, outcome, head | found | tail)


def _first_s(scenario: Scenario, control: Control) -> float:
    """Returns when the control's first epoch is: at 0, or as the scenario's loops of its name are due."""
    return scenario.due_s.get(control.name, 0.0) % control.period_s


def _references(scenario: Scenario) -> list[InstanceSpec]:
    """Returns for each service the first instance that may serve it."""
    specs = [group.instances[0] for group in scenario.groups]
    return [next(spec for spec in specs if service.model in (None, spec.model)) for service in scenario.services]


def _layout(scenario: Scenario, config: PolicyConfig, first: Sequence[Load], whole: bool) -> Layout:
    traffic = Traffic.of(first, sum(len(service.cells) for service in scenario.services))
    if not isinstance(config, StaticConfig):
        return dynamic_fleet(scenario, config, traffic)
    cuts = scenario.cut_fleet or config.cuts_fleet
    layout = (dynamic_fleet if cuts else static_fleet)(scenario, config, traffic)
    if whole and scenario.overload == "refuse":
        check_load(layout.fleet, traffic)
    return layout


def _share(scenario: Scenario, requests: Requests, arrived: int, now_s: float) -> float | None:
    """Returns the share of the run that is done, as far as one can know."""
    if requests.whole:
        return arrived / requests.count
    spans = [_span_s(service.workload) for service in scenario.services]
    known = [span_s for span_s in spans if span_s is not None]
    return min(1.0, now_s / max(known)) if len(known) == len(spans) else None


def _span_s(workload: Workload) -> float | None:
    """Returns how many seconds a generator will go on; None: not known beforehand."""
    if workload.requests is not None or workload.trace is not None or workload.generator is None:
        return None
    if workload.duration_s is None and workload.generator.curve is not None:
        return workload.generator.curve.period_s / workload.time_scale
    return workload.duration_s


def warm_up(scenario: Scenario) -> None:
    """Compiles the kernel, or loads it from its cache: a second or minute that is no part of a run."""
    one: Ints = np.ones(1, np.int64)
    tiny = Arrivals(np.zeros(1), one, one, np.zeros(1, np.int64), np.zeros(1, np.int64))
    first, spec = scenario.services[0], _references(scenario)[0]
    calm = replace(
        scenario,
        overload="allow",
        policy=StaticConfig("single_pool"),
        services=(first,),
        groups=(Group((spec,)),),  # services may share a group's kind of instance, by turns
        cut_fleet=False,
    )
    run_scenario(calm, Requests((tiny,), iter(()), True, Tally()))


def capacity(
    scenario: Scenario, policy: str | None, attainment: float, trace: Path | None = None, steps: int = 12
) -> dict[str, float | None]:
    """Searches the largest multiple of the workload's rate at which the SLO attainment is at least `attainment`.

    By bisection between half and twice what is known to do and not to do, to a per cent or `steps` runs. The rate is
    that of the run's requests over the time in which they arrive.

    Raises:
        ScenarioError: The scenario has no objectives.
    """
    low, high, rate_rps = 0.0, math.inf, None
    scale = 1.0
    for _ in range(steps):
        services = tuple(
            replace(s, workload=replace(s.workload, rate_scale=s.workload.rate_scale * scale))
            for s in scenario.services
        )
        scaled = replace(scenario, services=services, overload="allow")
        requests = requests_of(scaled, trace)
        found = run_scenario(scaled, requests, policy).figures["slo_attainment"]
        if found is None:
            raise ValueError("slo: missing; the capacity at an SLO attainment needs objectives")
        if found >= attainment:
            low = scale
            span_s = float(requests.first[-1].arrival_s[-1])
            rate_rps = requests.count / span_s if requests.whole and span_s > 0.0 else None
        else:
            high = scale
        if math.isfinite(high) and high - low <= 0.01 * high:
            break
        scale = 2.0 * low if math.isinf(high) else (high / 2.0 if low == 0.0 else (low + high) / 2.0)
    return {"attainment": attainment, "rate_scale": low, "rate_rps": rate_rps}
