"""Values that cross borders inside the pure core: what controllers see and what they answer.

Every type is frozen; `None` means unknown, never zero. Units are in the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Loop(StrEnum):
    """The control loops, slowest first. A faster loop stays within the envelope of the slower one."""

    CARBON = "carbon"
    SCALE = "scale"
    SHARD = "shard"
    CLOCK = "clock"


class Source(StrEnum):
    """The origin of a figure, in order of trust."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    PUBLISHED = "published"
    CALIBRATED = "calibrated"  # the closed form, corrected by what engines did while they served
    MODELLED = "modelled"  # by parameters that were fitted to measurements of the GPU type
    DATA_SHEET = "modelled by data sheet"  # nobody has measured the GPU type


class ChangeKind(StrEnum):
    """The way in which instances become others, of other TP degrees."""

    IN_PLACE = "in_place"  # weights move between GPUs while the old ones serve (DynamoLLM IV-C)
    SHADOW = "shadow"  # new ones start on free GPUs beside the old ones, which serve until then (throttLL'eM IV-D)
    RESTART = "restart"  # old ones end what they have, then new ones start on their GPUs


class Reason(StrEnum):
    """The cause of a controller's decision. Every decision, a hold included, carries one."""

    OPTIMAL = "optimal"  # the solver proved it
    FEASIBLE = "feasible"  # the best found within the time limit
    HEURISTIC = "heuristic"  # a greedy fall-back, its distance from the bound in the inputs
    INFEASIBLE = "infeasible"  # no plan meets all constraints: what can be done is done, or the last one is kept
    NO_CHANGE = "no_change"  # the present plan is already the best
    NOT_WORTH_IT = "not_worth_it"  # the saving does not clear the cost of the transition
    NO_DATA = "no_data"  # an input is missing or stale: the last plan is kept
    CONGESTED = "congested"  # a latency threshold was crossed, or the fleet is too small: clock or capacity up
    SLACK = "slack"  # latencies within thresholds, or less carries the load: clock or capacity down
    AT_LIMIT = "at_limit"  # the knob is already at its end
    REORDERED = "queue_reordered"  # requests about to miss their deadline go first
    RAMPED = "clock_ramped"  # reordering is not enough: top clock
    RESTEERED = "requests_resteered"  # a backlog persists: requests that have not started go elsewhere
    SQUASHED = "requests_squashed"  # nothing else helped: clients are to try again
    POLICY = "policy"  # the policy in force leaves no choice: paused, or fixed
    WITHIN_LIMITS = "within_limits"  # every limit is kept as far as the projection sees
    WOULD_VIOLATE = "would_violate"  # a limit would be broken: it waits
    LOST = "lost"  # its own deadline cannot be met, but it harms nobody: served all the same (throttLL'eM)
    GRACE = "grace"  # too young to be replaced by a smaller one (throttLL'eM), or less would do for too short a time


@dataclass(frozen=True, slots=True, order=True)
class Mode:
    """A worker mode: one instance of `tp` GPUs of type `gpu` (FREESH table 1, knob 4).

    A worker of more than one GPU type, prefill and decode apart for instance, lists its other parts in `also`. `label`
    tells two modes of the same GPUs apart and is then the name.
    """

    gpu: str
    tp: int
    also: tuple[tuple[str, int], ...] = ()  # (GPU type, GPUs)
    label: str = ""

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs that one worker takes, by type: G_mc of FREESH eq. 1c."""
        if not self.also:
            return {self.gpu: self.tp}
        taken: dict[str, int] = {}
        for gpu, count in ((self.gpu, self.tp), *self.also):
            taken[gpu] = taken.get(gpu, 0) + count
        return taken

    @property
    def name(self) -> str:
        return self.label or "+".join(f"{gpu}/TP{tp}" for gpu, tp in ((self.gpu, self.tp), *self.also))

    @classmethod
    def parse(cls, name: str) -> Mode:
        """Reads what `name` writes, labels excepted.

        Raises ValueError on anything not like `GPU/TPn` or `GPU/TPn+GPU/TPm`.
        """
        parts: list[tuple[str, int]] = []
        for part in name.split("+"):
            gpu, separator, tp = part.rpartition("/TP")
            if not separator or not tp.isdigit() or int(tp) < 1:
                raise ValueError(f"'{name}' is not a worker mode; write it like A100-80GB/TP4")
            parts.append((gpu, int(tp)))
        return cls(*parts[0], tuple(parts[1:]))


@dataclass(frozen=True, slots=True)
class Limits:
    """Latency limits of a request class or service; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModeProfile:
    """The performance of one worker for one request class at its top clock.

    `measured_at_s`: when that was measured which it rests on, in Unix seconds; None: not known, or nothing was.
    """

    max_rps: float  # 0: the mode cannot serve the class within its SLO
    power_w: float  # whole instance at max_rps
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    source: Source
    measured_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClassDemand:
    """Forecast of one request class: the peak 5-second arrival rate of each coming step."""

    name: str
    demand_rps: tuple[float, ...]
    limits: Limits = Limits()
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class SiteView:
    """A site as the epochs see it. Intensity and price have one entry a step, None where the feed has none.

    `closed`: classes that are to get no workers here from a plan: somebody has set those by hand.
    """

    name: str
    gpus: Mapping[str, int]  # GPU type -> GPUs that healthy nodes offer
    pue: float
    intensity_g_per_kwh: tuple[float | None, ...]
    price_usd_per_kwh: tuple[float | None, ...] = ()
    closed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class PoolKey:
    site: str
    request_class: str


@dataclass(frozen=True, slots=True)
class PartitionOption:
    """One way to cut requests into classes, with what each mode does for each class."""

    name: str
    classes: tuple[ClassDemand, ...]
    profiles: Mapping[tuple[str, Mode], ModeProfile]  # (class, mode)


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool as the scale and shard epochs see it."""

    key: PoolKey
    gpu_budget: Mapping[str, int]  # GPU type -> GPUs, the carbon epoch's envelope
    workers: Mapping[Mode, int]  # wanted now
    demand: ClassDemand  # this pool's share of its class's demand
    profiles: Mapping[Mode, ModeProfile]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A configuration that was weighed. `failed` names the constraint that ruled it out."""

    label: str
    chosen: bool = False
    feasible: bool = True
    failed: str | None = None
    power_w: float | None = None
    energy_j: float | None = None
    carbon_gco2e: float | None = None
    cost_usd: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    source: Source = Source.MODELLED


@dataclass(frozen=True, slots=True)
class Rationale:
    """The reasons of a decision: the enum, a sentence for people, the inputs as they were, and what was weighed."""

    reason: Reason
    summary: str
    inputs: Mapping[str, Any] = field(default_factory=dict)  # JSON-able
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoosePartition:
    partition: str


@dataclass(frozen=True, slots=True)
class SetGpuBudget:
    """The carbon epoch's envelope of one pool; pools not named get none."""

    pool: PoolKey
    gpus: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ScaleTo:
    """The workers a pool is to have, by mode: from the scale epoch, within the budget."""

    pool: PoolKey
    workers: Mapping[Mode, int]


@dataclass(frozen=True, slots=True)
class SetTpDegrees:
    """The shard epoch's mix of modes for a pool, within the GPUs that scale gave it."""

    pool: PoolKey
    workers: Mapping[Mode, int]


@dataclass(frozen=True, slots=True)
class SetSmClock:
    instance: str
    mhz: float


@dataclass(frozen=True, slots=True)
class Admit:
    """A queued request joins the batch of an instance. `lost`: it will miss its deadline (throttLL'eM IV-C)."""

    instance: str
    request: str | int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class StartShadow:
    """A second instance in `mode` warms up beside `instance`, takes over when it is ready, and the first drains."""

    instance: str
    mode: Mode


@dataclass(frozen=True, slots=True)
class CancelShadow:
    """What warms up beside `instance` is not wanted any more."""

    instance: str


@dataclass(frozen=True, slots=True)
class ForwardLoad:
    """Of a pool's requests this share goes to another pool until the next epoch (DynamoLLM's hand-down); 1: all."""

    pool: PoolKey
    to: PoolKey
    share: float


@dataclass(frozen=True, slots=True)
class WeightTransfer:
    """One GPU sends another a part of the weights of the whole model; GPUs by their places on the node."""

    source: int
    target: int
    weights_share: float


@dataclass(frozen=True, slots=True)
class ReshardNode:
    """The instances of a pool on one node become others (TP degrees, rising), in place.

    For `transfer_s` weights move while the old ones serve with `kv_share` of their KV cache, then engines synchronise
    for `sync_s`. `serves_on`: the old ones serve until the new are up; else `shift_rps` are to be shifted to the rest
    of the pool first. `change`: how it is made; where that is not in place, the times are those of ends and starts.
    `measured`: the times are what such changes took here, not what is published. `transfers`: the re-shard plan.
    """

    pool: PoolKey
    node: str
    gpu: str
    source: tuple[int, ...]
    target: tuple[int, ...]
    transfer_s: float
    sync_s: float
    kv_share: float
    serves_on: bool
    shift_rps: float
    change: ChangeKind = ChangeKind.IN_PLACE
    measured: bool = False
    transfers: tuple[WeightTransfer, ...] = ()


@dataclass(frozen=True, slots=True)
class ReorderQueue:
    """The waiting requests of an instance are to be served in this order."""

    instance: str
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResteerRequests:
    """Waiting requests, which have not started, go to other instances: (request, instance)."""

    instance: str
    moves: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SquashRequests:
    """Waiting requests are given back to their clients, to be tried again after `retry_after_s`."""

    instance: str
    requests: tuple[str, ...]
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class RunDeferred:
    """Work that can wait runs now: so many lines of a service's batches, until then at most (Unix seconds)."""

    service: str
    lines: int
    until_s: float


@dataclass(frozen=True, slots=True)
class PutToSleep:
    """A service without traffic gives its GPUs up, or its engines sleep on them."""

    service: str


@dataclass(frozen=True, slots=True)
class WakeUp:
    """A service that sleeps has its workers again."""

    service: str


@dataclass(frozen=True, slots=True)
class SwitchServer:
    """A server is switched on or off, by its node's name."""

    server: str
    on: bool


Command = (
    ChoosePartition
    | SetGpuBudget
    | ScaleTo
    | SetTpDegrees
    | SetSmClock
    | ForwardLoad
    | ReshardNode
    | ReorderQueue
    | ResteerRequests
    | SquashRequests
    | Admit
    | StartShadow
    | CancelShadow
    | PutToSleep
    | WakeUp
    | SwitchServer
    | RunDeferred
)


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """The decision for one pool: what it is to have, changed or not, and why."""

    pool: PoolKey
    workers: Mapping[Mode, int]
    changed: bool
    rationale: Rationale


@dataclass(frozen=True, slots=True)
class Effects:
    """A controller's answer: commands, when it wants to run next, and why.

    `decisions`: of a step that decides for pools, each pool's own.
    """

    commands: tuple[Command, ...]
    next_tick_s: float | None
    rationale: Rationale
    decisions: tuple[PoolDecision, ...] = ()


@dataclass(frozen=True, slots=True)
class CarbonObservation:
    """Input of the carbon epoch (FREESH eq. 1). All tuples over steps have the same length.

    `intensity_signal`: what the intensities of all sites are, average or marginal rates.
    """

    now_s: float
    step_s: float
    sites: tuple[SiteView, ...]
    partitions: tuple[PartitionOption, ...]
    intensity_signal: str = "average"


@dataclass(frozen=True, slots=True)
class CarbonPlan:
    """The plan in force: state of the carbon epoch. `workers[(site, class, mode)]` counts instances."""

    partition: str
    workers: Mapping[tuple[str, str, Mode], int]


@dataclass(frozen=True, slots=True)
class ScaleObservation:
    """Input of the scale epoch: the pools of the active partition with their budgets."""

    now_s: float
    step_s: float
    pools: tuple[PoolView, ...]


@dataclass(frozen=True, slots=True)
class ShardObservation:
    """Input of the shard epoch: the same pools; `workers` is what runs now and sets the number of GPUs.

    `starts_s`: what a start takes; of a mode that is not there: `transition_s`. `changes`: how each pool's instances
    become others; of one that is not there: in place, and old and new ones draw power together meanwhile.
    """

    now_s: float
    epoch_s: float  # how long a new mix will stay: the horizon a transition must pay off within
    pools: tuple[PoolView, ...]
    transition_s: float
    starts_s: Mapping[Mode, float] = field(default_factory=dict)
    changes: Mapping[PoolKey, ChangeKind] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClockObservation:
    """Input of the clock loop for one instance over its last period. Latencies None: nothing finished."""

    now_s: float
    instance: str
    sm_clock_mhz: float
    min_mhz: float
    max_mhz: float
    running: int
    waiting: int
    ttft_s: float | None  # worst of the period
    tpot_s: float | None
    e2e_s: float | None
    limits: Limits
