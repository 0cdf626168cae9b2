"""The views that a controller of the simulated fleet gets, and the commands that it can give.

Values only; `driver` carries them out.

`ReorderQueue`, `ResteerRequests` and `SquashRequests` are the core's; requests go by their numbers. A waiting request
that has no token yet may be squashed: what was done for it is lost and it comes again later, to the router or its pool;
its latencies count from its first arrival. One that has nothing in the cache may be re-steered. Only queues that are
first come first served are reordered. What cannot be done any more is counted as refused.

A request has a `cell`, the finest class that any partition knows it by (from its prompt and its predicted output).
Which pool serves a cell is what `Assign` changes: a partition is a mapping of cells to pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from core.simulator.kernel.simulated import InstanceSpec
from core.types import ReorderQueue, ResteerRequests, SetSmClock, SquashRequests

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# States of an instance.
OFF, STARTING, SERVING, DRAINING = 0, 1, 2, 3
STRETCH_S = 5.0  # arrivals are counted in stretches of this length (FREESH and DynamoLLM: the peak 5-second rate)


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """The sequences of an instance: the running ones in order of admission, then those in its queue. One entry each."""

    running: int  # how many of them run
    number: Ints  # the request's
    kv_tokens: Ints  # in the cache; of a prompt under way all of it is allocated; 0 while waiting
    generated_tokens: Ints
    to_prefill_tokens: Ints
    predicted_tokens: Ints  # output
    arrival_s: Floats
    due_s: Floats


@dataclass(frozen=True, slots=True)
class RequestView:
    """The facts known of a request when it arrives."""

    number: int
    arrival_s: float
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    due_s: float
    cell: int
    service: int
    tenant: int


def _nothing(instance: int) -> Sequences:
    none, never = np.zeros(0, np.int64), np.zeros(0)
    return Sequences(0, none, none, none, none, none, never, never)


def _nobody() -> Floats:
    return np.zeros((0, 3))


def _none_ended() -> Floats:
    return np.zeros((0, 7))


@dataclass(frozen=True, slots=True, eq=False)
class FleetView:
    """The fleet at an epoch. Arrays over instances are in the order of `instances`; off ones keep their place.

    `arrived[c, k]` are requests, prompt tokens and predicted output tokens of cell c in the k-th stretch of STRETCH_S
    seconds; the last stretch may be under way. `unplaced[p]` requests wait because pool p has no instance that serves.
    Latencies are means of the time since the fastest control last ran, as an engine's metrics tell them: the TTFT of
    first tokens, the gap between tokens (called TPOT, as on the metrics page), the E2E latency of what ended; NaN: of
    nothing.
    """

    now_s: float
    instances: tuple[InstanceSpec, ...]
    state: Ints
    pool: Ints  # -1: in none
    mhz: Floats
    running: Ints
    waiting: Ints
    kv_used_tokens: Ints
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    cell_pool: tuple[int, ...]
    unplaced: Ints
    arrived: NDArray[np.int64]  # (cells, stretches, 3)
    sequences: Callable[[int], Sequences] = _nothing  # of an instance by its number, as of now_s
    came: Callable[[], Floats] = _nobody  # (requests, 3) of those that came last: arrival_s, prompt tokens, cell
    # (requests, 7) of those that were done since it was last asked for: prompt tokens, cell, TTFT, TPOT (NaN: with a
    # single token), E2E, predicted and true output tokens
    ended: Callable[[], Floats] = _none_ended


@dataclass(frozen=True, slots=True)
class Start:
    """A new instance joins `pool` after `ready_in_s`; until then its GPUs draw loaded idle power (transition energy).

    Instances named in `replaces` are drained when it is ready: that is how a shadow instance takes over. An
    off instance of the same kind is used again; the spec's name is made unique when needed. `weight` is its share under
    routing by weights.
    """

    spec: InstanceSpec
    pool: str
    ready_in_s: float
    replaces: tuple[str, ...] = ()
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Drain:
    """Takes no new requests, and is off as soon as its last one has ended. A starting one is off at once."""

    instance: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Serves on though an instance that starts was to replace it."""

    instance: str


@dataclass(frozen=True, slots=True)
class Reshard:
    """The GPUs of `instances` become those of `into`, in the pool of the first.

    For `transfer_s` weights move while the old ones serve, with `kv_share` of their KV cache; then engines synchronise
    for `sync_s`, in which nobody serves; then the new ones take over all requests, their KV cache included.
    """

    instances: tuple[str, ...]
    into: tuple[InstanceSpec, ...]
    transfer_s: float
    sync_s: float
    kv_share: float = 1.0
    weights: tuple[float, ...] = ()  # of the new ones under routing by weights; none: 1 each


@dataclass(frozen=True, slots=True)
class Assign:
    """The pool that serves each cell from now on; cells not named stay. Requests already queued stay where they are."""

    pools: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Move:
    """A serving instance joins another pool at once, with the requests that it has. `weight`: as in `Start`."""

    instance: str
    pool: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class SetWeight:
    """An instance's share of its pool's requests under routing by weights."""

    instance: str
    weight: float


SimCommand = (
    SetSmClock
    | Start
    | Drain
    | Keep
    | Reshard
    | Move
    | Assign
    | SetWeight
    | ReorderQueue
    | ResteerRequests
    | SquashRequests
)


@dataclass(frozen=True, slots=True)
class Decision:
    """One epoch of one loop: what was decided and why, for the decision log."""

    at_s: float
    loop: str
    reason: str
    summary: str
    commands: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A control's answer at its epoch. Only decisions that matter need be logged: holds are counted by the driver."""

    commands: tuple[SimCommand, ...] = ()
    decisions: tuple[Decision, ...] = field(default=())


class Control(Protocol):
    """A loop of the simulated fleet, called at t = 0, period_s, 2 period_s ... Where loops fall together the slower
    one (the longer period) goes first, and the next sees a view in which its commands have been carried out.

    It may keep state; the same seed and views must give the same answers.
    """

    @property
    def name(self) -> str: ...

    @property
    def period_s(self) -> float: ...

    def step(self, view: FleetView) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a request: the queue of an instance (by its number), with commands that take effect before it does.

    With `split` above 0 it is handed over to instance `second` when its cache holds so many tokens; the pool's handover
    says what that takes.
    """

    instance: int
    split: int = 0
    second: int = -1
    commands: tuple[SimCommand, ...] = ()


class Router(Protocol):
    """Places every request, in the place of the pools' routing. What it holds back is offered again every `tick_s`."""

    @property
    def tick_s(self) -> float: ...

    def place(self, request: RequestView, view: FleetView) -> Placement | None:
        """Returns where the request goes. None: not now."""
        ...
