"""The simulated instances, pools and load. Values, validated where they are made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.engine.engine_model import EngineModel, engine_model
from core.types import Limits

TOKENS_PER_ITERATION = 2048  # vLLM's long-standing default of max_num_batched_tokens with chunked prefill
MAX_SEQUENCES = 256  # vLLM's max_num_seqs
ROUTINGS = ("round_robin", "least_loaded", "weighted", "least_backlog", "least_energy")
ORDERS = ("fcfs", "sjf", "srtf", "edf", "llf")


class SimulationError(ValueError):
    """Something that cannot be simulated. The message names the field and what to do about it."""


@dataclass(frozen=True, slots=True)
class FixedCosts:
    """An engine whose iterations cost the same whatever the context: for queues with a known closed form."""

    base_s: float = 0.0
    prefill_token_s: float = 0.0
    decode_s: float = 0.0  # per decoding sequence
    busy_w: float = 1.0
    idle_w: float = 0.0
    kv_capacity_tokens: float = 1e9

    def __post_init__(self) -> None:
        for name in ("base_s", "prefill_token_s", "decode_s", "busy_w", "idle_w"):
            if not 0.0 <= getattr(self, name) < np.inf:
                raise SimulationError(f"fixed costs: {name} must be a number from 0, not {getattr(self, name)}")
        if self.base_s <= 0.0 and (self.prefill_token_s <= 0.0 or self.decode_s <= 0.0):
            raise SimulationError("fixed costs: an iteration would take no time: give base_s")


@dataclass(frozen=True, slots=True)
class Scheduling:
    """An instance's rules for its queue's order, for who may have to give way, and for how long an iteration may be.

    `order`: fcfs | sjf (predicted output tokens, less `aging` tokens for each second of waiting) | srtf (least work
    left) | edf (`due_s`) | llf (`due_s` less the work left; of those that are late by that, the least work left). Work
    is estimated with `token_s` for each predicted output token to come and `prefill_token_s` for each token to prefill.
    With `preempts_s` above 0, once in each stretch of so many seconds running requests that come later than waiting
    ones, by more than `margin`, give way and are computed again; under llf only those that can afford it.
    `itl_limit_s`: iterations with decodes take no more prefill tokens than keeps them within it (DynaServe).
    `chunk_tokens`: an iteration takes no more tokens of one prompt, so that short ones need not wait for a long one
    to be done (vLLM's long_prefill_token_threshold); 0: as many as it has room for.
    """

    order: str = "fcfs"
    aging: float = 0.0
    token_s: float = 0.0
    prefill_token_s: float = 0.0
    preempts_s: float = 0.0
    margin: float = 0.0
    itl_limit_s: float = 0.0
    chunk_tokens: int = 0

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise SimulationError(f"scheduling: unknown order '{self.order}'; known: {', '.join(ORDERS)}")
        for name in ("aging", "token_s", "prefill_token_s", "preempts_s", "margin", "itl_limit_s", "chunk_tokens"):
            if not 0.0 <= getattr(self, name) < np.inf:
                raise SimulationError(f"scheduling: {name} must be a number from 0, not {getattr(self, name)}")
        if self.preempts_s > 0.0 and self.order == "fcfs":
            raise SimulationError("scheduling: first come first served preempts nobody: give another order")


@dataclass(frozen=True, slots=True)
class Pacing:
    """The clock is the lowest by deadlines (`core.algorithms.clock.deadline_clock`): of those `step_mhz` apart below
    the top, down to `floor_mhz`.

    `switch_s`: from asking for a clock until it is there; one switch follows another. `ahead`: it keeps the limits of
    all that waits; else those of the next iteration.
    """

    floor_mhz: float
    step_mhz: float
    switch_s: float = 0.0
    ahead: bool = True


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One serving engine. `costs` replaces the engine model of (model, gpu, tp, engine).

    `owner`: the service that it is for, where several have instances that are otherwise alike; one that is off is used
    again only by its owner.
    `gpu_share`: the part of each of its GPUs that is its own, always (see EngineModel). Whoever shares a GPU sets one
    clock for all of it.
    """

    name: str
    model: str
    gpu: str
    tp: int
    mhz: float
    engine: str = "vllm-v1"
    site: str = "site"
    max_sequences: int = MAX_SEQUENCES
    tokens_per_iteration: int = TOKENS_PER_ITERATION
    kv_capacity_tokens: int | None = None  # None: what the engine model says
    costs: FixedCosts | None = None
    scheduling: Scheduling = field(default_factory=Scheduling)
    gpu_share: float = 1.0
    owner: str = ""
    pacing: Pacing | None = None  # None: its clock is set from outside

    def __post_init__(self) -> None:
        if not 0.0 < self.gpu_share <= 1.0 or (self.costs is not None and self.gpu_share < 1.0):
            raise SimulationError(f"{self.name}: gpu_share is above 0, at most 1, and 1 with fixed costs")
        if self.max_sequences < 1:
            raise SimulationError(f"{self.name}: max_sequences must be at least 1, not {self.max_sequences}")
        if self.tokens_per_iteration < 1:
            raise SimulationError(
                f"{self.name}: tokens_per_iteration must be at least 1, not {self.tokens_per_iteration}"
            )
        if self.kv_capacity < 1:
            raise SimulationError(
                f"{self.name}: {self.model} on {self.tp} x {self.gpu} leaves no room for a KV cache: take more GPUs "
                "(tp), a larger GPU, or a smaller model"
            )
        if self.costs is None:
            gpu = engine_model(self.model, self.gpu, self.tp, self.engine).gpu_params
            if not gpu.f_min <= self.mhz <= gpu.f_max:
                raise SimulationError(
                    f"{self.name}: mhz {self.mhz:g} is outside the {self.gpu}'s range, {gpu.f_min:g} to {gpu.f_max:g}"
                )

    @property
    def kv_capacity(self) -> int:
        if self.kv_capacity_tokens is not None:
            return self.kv_capacity_tokens
        return int(self.engine_costs.kv_capacity_tokens)

    @property
    def chunk_tokens(self) -> int:
        """The most that one prompt gets of an iteration."""
        return min(self.scheduling.chunk_tokens or self.tokens_per_iteration, self.tokens_per_iteration)

    @property
    def engine_costs(self) -> EngineModel | FixedCosts:
        return self.costs or engine_model(self.model, self.gpu, self.tp, self.engine, self.gpu_share)

    def idle_w(self, mhz: float) -> float:
        """Of the whole instance, loaded and with nothing to do."""
        if self.costs is not None:
            return self.costs.idle_w
        return engine_model(self.model, self.gpu, self.tp, self.engine, self.gpu_share).idle_watts(mhz)


@dataclass(frozen=True, slots=True)
class Handover:
    """A pool's requests go on to pool `to` when their KV cache holds `at` of their tokens.

    `at`: "prompt" (prefill and decode apart: the first token comes here, the others there), or a share of prompt and
    predicted output (a micro-request split, at any token). A token's cache takes `token_s` on the link; with `chunked`,
    prefilled chunks are sent while later ones are computed, else all is sent at the end. Each request has a link of its
    own, and its place in the cache is free once it is handed over. "routed": a router says for each request.
    """

    to: str
    at: float | str = "prompt"
    token_s: float = 0.0
    latency_s: float = 0.0
    chunked: bool = True

    def __post_init__(self) -> None:
        if self.at not in ("prompt", "routed") and not (isinstance(self.at, (int, float)) and 0.0 < self.at < 1.0):
            raise SimulationError(f"handover: at must be 'prompt' or a share between 0 and 1, not {self.at!r}")
        if not (0.0 <= self.token_s < np.inf and 0.0 <= self.latency_s < np.inf):
            raise SimulationError("handover: token_s and latency_s must be numbers from 0")


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Instances that share requests. `members` index the fleet; with controls, others may join and leave.

    `most_unstarted`: requests without a first token that one of them should have; 0: any number. `spills`: the pools
    that take its requests when its own instances have as many, or none serves, in the order in which they are asked.
    """

    name: str
    members: tuple[int, ...]
    routing: str = "round_robin"
    handover: Handover | None = None
    most_unstarted: int = 0
    spills: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.routing not in ROUTINGS:
            raise SimulationError(f"pool {self.name}: unknown routing '{self.routing}'; known: {', '.join(ROUTINGS)}")


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """Instances in pools; `cell_pool` says which pool serves each cell. `weights`: for routing, one an instance.

    `cell_limits`: those that clocks by deadlines keep, one a cell.
    """

    instances: tuple[InstanceSpec, ...]
    pools: tuple[PoolSpec, ...]
    cell_pool: tuple[int, ...] = (0,)
    weights: tuple[float, ...] = ()
    cell_limits: tuple[Limits, ...] = ()

    def __post_init__(self) -> None:
        if not self.pools:
            raise SimulationError("the fleet has no pools: give at least one")
        members = sorted(i for pool in self.pools for i in pool.members)
        if members != list(range(len(self.instances))):
            raise SimulationError("each instance must be in exactly one pool")
        for cell, pool in enumerate(self.cell_pool):
            if not 0 <= pool < len(self.pools):
                raise SimulationError(f"class {cell} is served by pool {pool}, and there is no such pool")
        if any(spec.pacing for spec in self.instances) and len(self.cell_limits) != len(self.cell_pool):
            raise SimulationError("cell_limits: clocks by deadlines need the limits of every cell")
        if self.weights and len(self.weights) != len(self.instances):
            raise SimulationError("weights: give one for each instance, or none")
        if any(not 0.0 < weight < np.inf for weight in self.weights):
            raise SimulationError("weights must be above 0")
        names = {pool.name for pool in self.pools}
        for spec in self.pools:
            if spec.handover is not None and spec.handover.to not in names:
                raise SimulationError(f"pool {spec.name} hands over to '{spec.handover.to}', and there is no such pool")

    def pool_number(self, name: str) -> int:
        """Raises SimulationError when there is no such pool."""
        for n, pool in enumerate(self.pools):
            if pool.name == name:
                return n
        raise SimulationError(f"there is no pool '{name}'; known: {', '.join(pool.name for pool in self.pools)}")


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Requests in order of arrival, as columns of equal length. Make it with `load`."""

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]  # of the prompt, in the prefix cache
    request_class: NDArray[np.int64]  # by true lengths: its objectives
    deadline_s: NDArray[np.float64] = field(repr=False)  # a token by then is timely; infinite: all are
    cell: NDArray[np.int64] = field(repr=False)  # by predicted lengths: what it is routed by
    predicted_tokens: NDArray[np.int64] = field(repr=False)  # output
    lat_s: NDArray[np.float64] = field(repr=False)  # what it takes alone; NaN: unknown
    due_s: NDArray[np.float64] = field(repr=False)  # what queues go by that know deadlines
    service: NDArray[np.int64] = field(repr=False)
    tenant: NDArray[np.int64] = field(repr=False)

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def __getitem__(self, part: slice) -> Load:
        return Load(*(column[part] for column in self.columns))

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        return tuple(getattr(self, column.name) for column in fields(self))


def load(
    arrival_s: ArrayLike,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    prefix_hit_ratio: float = 0.0,
    request_class: ArrayLike | None = None,
    deadline_s: ArrayLike | None = None,
    cell: ArrayLike | None = None,
    predicted_tokens: ArrayLike | None = None,
    lat_s: ArrayLike | None = None,
    due_s: ArrayLike | None = None,
    service: ArrayLike | None = None,
    tenant: ArrayLike | None = None,
) -> Load:
    """Makes a load, and checks it.

    Args:
        prefix_hit_ratio: Share of each prompt that the prefix cache has (rounded down; the last token is always
            computed).
        deadline_s: Absolute time up to which a request's tokens count as timely.
        cell: Default: its class. predicted_tokens: default: the true ones. due_s: default: deadline_s.

    Raises:
        SimulationError: Empty, unsorted, not finite, of unequal lengths, or with lengths below 1; names the row.
    """
    at = np.ascontiguousarray(arrival_s, dtype=np.float64)
    prompt, output = _tokens("prompt_tokens", prompt_tokens), _tokens("output_tokens", output_tokens)
    n = at.size
    if n == 0:
        raise SimulationError("the load is empty: no request to simulate")
    classes = _index(request_class, n)
    deadline = np.full(n, np.inf) if deadline_s is None else np.ascontiguousarray(deadline_s, np.float64)
    predicted = output if predicted_tokens is None else _tokens("predicted_tokens", predicted_tokens)
    lat = np.full(n, np.nan) if lat_s is None else np.ascontiguousarray(lat_s, np.float64)
    found = Load(
        at,
        prompt,
        output,
        np.zeros(n, np.int64),
        classes,
        deadline,
        classes if cell is None else _index(cell, n),
        predicted,
        lat,
        deadline if due_s is None else np.ascontiguousarray(due_s, np.float64),
        _index(service, n),
        _index(tenant, n),
    )
    for column in fields(Load):
        values = getattr(found, column.name)
        if values.shape != (n,):
            raise SimulationError(f"{column.name} has {values.size} values for {n} arrivals")
    if not 0.0 <= prefix_hit_ratio <= 1.0:
        raise SimulationError(f"prefix_hit_ratio must lie between 0 and 1, not {prefix_hit_ratio}")
    _refuse("arrival_s must be a number from 0", ~(np.isfinite(at) & (at >= 0.0)), at)
    _refuse("arrival_s must not go back: sort the requests by time", np.diff(at, prepend=at[0]) < 0.0, at)
    _refuse("deadline_s must not be NaN", np.isnan(deadline), deadline)
    _refuse("due_s must not be NaN", np.isnan(found.due_s), found.due_s)
    cached = np.minimum(np.floor(prefix_hit_ratio * prompt).astype(np.int64), prompt - 1)
    return replace(found, cached_tokens=cached)


def _index(values: ArrayLike | None, n: int) -> NDArray[np.int64]:
    return np.zeros(n, np.int64) if values is None else np.ascontiguousarray(values, np.int64)


def _tokens(name: str, values: ArrayLike) -> NDArray[np.int64]:
    column = np.asarray(values)
    if column.size and not np.issubdtype(column.dtype, np.integer):
        whole = np.asarray(column, dtype=np.float64)
        _refuse(f"{name} must be whole numbers", ~np.isfinite(whole) | (whole != np.floor(whole)), whole)
    tokens = np.ascontiguousarray(column, dtype=np.int64)
    _refuse(f"{name} must be at least 1", tokens < 1, tokens)
    return tokens


def _refuse(rule: str, bad: NDArray[np.bool_], values: NDArray[np.float64] | NDArray[np.int64]) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise SimulationError(f"request {row + 1}: {rule}, not {values[row]}")
