"""Random fleets and loads, small and cramped, so that queues, preemptions and throttling all happen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st

from core.engine.engine_model import GPUS
from core.simulator.kernel.commands import (
    Answer,
    Assign,
    Drain,
    FleetView,
    Placement,
    RequestView,
    Reshard,
    SetWeight,
    SimCommand,
    Start,
)
from core.simulator.kernel.driver import MACRO, WALK
from core.simulator.kernel.kernel import DONE
from core.simulator.kernel.outcome import Outcome
from core.simulator.kernel.simulated import (
    FixedCosts,
    FleetSpec,
    Handover,
    InstanceSpec,
    Load,
    PoolSpec,
    Scheduling,
    load,
)
from core.types import ReorderQueue, ResteerRequests, SetSmClock, SquashRequests
from tests.oracles.token_by_token import REFERENCE

STEPPINGS = pytest.mark.parametrize("stepping", [MACRO, WALK, REFERENCE], ids=lambda stepping: stepping.name)

CONFIGURATIONS = [
    ("Llama2-70B", "H100-SXM-80GB", 8, "vllm-v1"),
    ("Llama3-70B", "A100-80GB", 4, "vllm-freesh"),
    ("Mixtral-8x7B", "H100-SXM-80GB", 4, "trtllm"),
    ("Qwen3-8B", "A100-80GB", 1, "vllm-2024"),
    ("Llama2-13B", "A100-40GB", 2, "eager-2023-a100"),
    # Launch-bound, then GPU-bound, then throttled at the TDP as the batch and its contexts grow.
    ("Qwen2.5-14B", "V100-16GB", 4, "eager-2023-a100"),
    ("gpt2-large", "V100-16GB", 2, "eager-2023-h100"),
    ("Llama2-13B", "V100-16GB", 1, "vllm-v1"),
    ("gpt2-large", "V100-16GB", 2, "eager-2023"),  # of parameter set 2
]


def total_j(outcome: Outcome) -> float:
    return float(sum(part.sum() for part in outcome.spent_j.values()))


def finished(outcome: Outcome) -> np.ndarray:
    """Which requests ended well."""
    return np.asarray(outcome.rows["status"] == DONE)


@st.composite
def schedulings(draw: st.DrawFn) -> Scheduling:
    order = draw(st.sampled_from(["fcfs", "fcfs", "sjf", "srtf", "edf", "llf"]))
    return Scheduling(
        order,
        aging=draw(st.sampled_from([0.0, 3.0])),
        token_s=draw(st.sampled_from([0.0, 0.02])),
        prefill_token_s=draw(st.sampled_from([0.0, 0.0003])),
        preempts_s=0.0 if order == "fcfs" else draw(st.sampled_from([0.0, 0.1, 1.0])),
        margin=draw(st.sampled_from([0.0, 0.5])),
        itl_limit_s=draw(st.sampled_from([0.0, 0.0, 0.03, 0.6])),
        chunk_tokens=draw(st.sampled_from([0, 0, 1, 64])),
    )


@st.composite
def instances(draw: st.DrawFn, name: str) -> InstanceSpec:
    model, gpu, tp, engine = draw(st.sampled_from(CONFIGURATIONS))
    rules = draw(schedulings())
    fixed = draw(st.sampled_from([None, None, None, FixedCosts(0.5, 0.25, 0.125, busy_w=100.0, idle_w=10.0)]))
    return InstanceSpec(
        name,
        model,
        gpu,
        tp,
        mhz=draw(st.sampled_from([GPUS[gpu].f_max, 1305.0, 990.0, 600.0])),
        engine=engine,
        max_sequences=draw(st.sampled_from([1, 2, 4, 64])),
        tokens_per_iteration=draw(st.sampled_from([1, 16, 256, 2048])),
        kv_capacity_tokens=draw(st.sampled_from([200, 700, 3000, 100_000])),
        costs=fixed,
        scheduling=rules,
    )


@st.composite
def handovers(draw: st.DrawFn, to: str) -> Handover | None:
    if draw(st.booleans()):
        return None
    return Handover(
        to,
        at=draw(st.sampled_from(["prompt", 0.2, 0.5, 0.9])),
        token_s=draw(st.sampled_from([0.0, 1e-5, 0.003])),
        latency_s=draw(st.sampled_from([0.0, 0.02])),
        chunked=draw(st.booleans()),
    )


@st.composite
def fleets(draw: st.DrawFn) -> FleetSpec:
    count = draw(st.integers(1, 4))
    specs = tuple(draw(instances(f"i{n}")) for n in range(count))
    routing = st.sampled_from(["round_robin", "least_loaded", "weighted"])
    weights = tuple(draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=count, max_size=count)))
    if count > 1 and draw(st.booleans()):
        handover, most = draw(handovers("large")), draw(st.sampled_from([0, 0, 1, 3]))
        spills = ("large",) if handover is None else ()
        pools = (
            PoolSpec("small", (0,), draw(routing), handover, most, spills),
            PoolSpec("large", tuple(range(1, count)), draw(routing), None, most, ("small",) if spills else ()),
        )
        return FleetSpec(specs, pools, (0, 1), weights)
    pool = PoolSpec("all", tuple(range(count)), draw(routing), draw(handovers("all")))
    return FleetSpec(specs, (pool,), (0, 0), weights)


@st.composite
def loads(draw: st.DrawFn, most: int = 25, longest: int = 400) -> Load:
    count = draw(st.integers(1, most))
    scale_s = draw(st.sampled_from([0.001, 0.05, 1.0, 20.0]))
    gaps = draw(st.lists(st.one_of(st.just(0.0), st.floats(0.0, 1.0)), min_size=count, max_size=count))
    at_s, now_s = [], 0.0
    for gap in gaps:
        now_s += gap * scale_s
        at_s.append(now_s)
    long = draw(st.sampled_from([20, longest]))
    lengths = st.lists(st.integers(1, long), min_size=count, max_size=count)
    windows = draw(st.lists(st.floats(0.0, 30.0), min_size=count, max_size=count))
    return load(
        at_s,
        draw(lengths),
        draw(lengths),
        prefix_hit_ratio=draw(st.sampled_from([0.0, 0.3, 1.0])),
        request_class=draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)),
        predicted_tokens=draw(lengths),
        deadline_s=[at + window for at, window in zip(at_s, windows, strict=True)],
    )


@dataclass(frozen=True, slots=True)
class Schedule:
    """A Control that does given things in given epochs."""

    commands: tuple[tuple[int, SimCommand], ...]
    period_s: float = 0.7
    name: str = "schedule"

    def step(self, view: FleetView) -> Answer:
        epoch = round(view.now_s / self.period_s)
        return Answer(tuple(command for at, command in self.commands if at == epoch))


@st.composite
def schedules(draw: st.DrawFn, fleet: FleetSpec) -> Schedule:
    """Clocks, starts, drains, re-shards, routes, emergencies, at multiples of 0.7 s."""
    names = st.sampled_from([spec.name for spec in fleet.instances])
    pools = st.sampled_from([pool.name for pool in fleet.pools])
    delays = st.sampled_from([0.0, 0.3, 2.0])
    commands = st.one_of(
        st.builds(SetSmClock, names, st.sampled_from([1410.0, 1005.0, 300.0])),
        st.builds(Start, instances("new"), pools, delays, st.lists(names, max_size=1).map(tuple)),
        st.builds(Drain, names),
        st.builds(
            Reshard,
            st.lists(names, min_size=1, max_size=2, unique=True).map(tuple),
            st.lists(instances("shard"), min_size=1, max_size=3).map(tuple),
            delays,
            delays,
            st.sampled_from([1.0, 0.4]),
        ),
        st.builds(lambda cell, pool: Assign({cell: pool}), st.integers(0, 1), pools),
        st.builds(SetWeight, names, st.sampled_from([0.5, 2.0])),
    )
    commands = st.one_of(commands, emergencies(names))
    return Schedule(tuple(draw(st.lists(st.tuples(st.integers(0, 20), commands), max_size=8))))


def emergencies(names: st.SearchStrategy[str]) -> st.SearchStrategy[SimCommand]:
    """For requests that may wait there, or not."""
    numbers = st.integers(0, 24).map(str)
    several = st.lists(numbers, min_size=1, max_size=25, unique=True)
    return st.one_of(
        st.builds(ReorderQueue, names, several.map(tuple)),
        st.builds(ResteerRequests, names, st.lists(st.tuples(numbers, names), min_size=1, max_size=25).map(tuple)),
        st.builds(SquashRequests, names, several.map(tuple), st.sampled_from([0.0, 0.4, 5.0])),
    )


class Turns:
    """A Router that goes by what it sees: to where the fewest tokens are, split now and then, held when all is full."""

    def __init__(self, split: bool, most: int) -> None:
        self.tick_s = 0.3
        self.seen: list[tuple[float, tuple[int, ...], tuple[int, ...]]] = []
        self._split, self._most = split, most

    def place(self, request: RequestView, view: FleetView) -> Placement | None:
        own = [view.sequences(i) for i in range(len(view.instances))]
        tokens = [int(s.kv_tokens.sum() + s.to_prefill_tokens.sum()) for s in own]
        assert all(int(s.kv_tokens.sum()) <= spec.kv_capacity for s, spec in zip(own, view.instances, strict=True))
        self.seen.append((view.now_s, tuple(view.kv_used_tokens.tolist()), tuple(s.number.size for s in own)))
        need = request.prompt_tokens + 400
        room = [len(s.number) < self._most for s in own]
        fits = [i for i, spec in enumerate(view.instances) if spec.kv_capacity >= need and room[i]]
        if not fits:
            return None
        best = min(fits, key=lambda i: (tokens[i], i))
        if self._split and request.number % 3 == 0 and len(fits) > 1:
            other = min((i for i in fits if i != best), key=lambda i: (tokens[i], i))
            return Placement(best, max(1, (request.prompt_tokens + request.predicted_tokens) // 2), other)
        return Placement(best, commands=(SetSmClock(view.instances[best].name, 990.0 + 100.0 * (request.number % 3)),))
