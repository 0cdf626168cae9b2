"""The desired state of a node, from the scheduler to its agent; and the clocks that gateways ask the agent for."""

from __future__ import annotations

from core.engine.engine_launch import EngineLaunch
from core.engine.gpu_types import GpuType
from core.engine.profiles import Profile
from core.ports import LONGEST_LEASE_S, EngineLimits, EngineOptions
from pools.wire.measured_engines import MeasuredEngine
from pools.wire.message_codec import Message

LONGEST_CLOCK_LEASE_S = 60.0


class LatencyLimits(Message, frozen=True):
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


class ClockPolicy(Message, frozen=True):
    """A clock rule (`core.policy.knobs.Knobs.clock`) and its knobs; each rule reads its own. None: as its controller
    has it.

    Attributes:
        policy: miad and primal_dual (FREESH eq. 5 and 4), profile (DynamoLLM IV-B), slack (mu-Serve Alg. 3), throttle
            and retail (what the gateways ask for, throttLL'eM IV-E and V-F3), deadline and iteration (the same, by the
            deadlines of the requests that are there), threshold (the share in use), fixed (top clock).
        period_s: Between decisions. `slack` samples latencies each `sample_s` within it.
        increase, decrease_mhz: M and delta of miad, and of slack.
        lease_s: How long a clock stays locked after it was last renewed.
        paused: All clocks at the top until further notice.
        predictor_error: By which predicted lengths are raised (throttle, retail).
        full_at, sensitivity, power_exponent, beta, urgency: Of primal_dual, see PrimalDualConfig.
        ttft_share, tpot_share: Of the limits, that the thresholds are already; profile holds latencies seen against
            whole ones.
        clock_floor, clock_floor_mhz: The lowest clock that a rule sets, see Knobs.
        min_saving: Of profile, see ProfileClockConfig.
        step_mhz, counts_ttft, full_iteration: Of profile, see ProfileTuning.
        memory_s: Of profile the load's, of slack the latencies'.
        by_sensitivity: Of slack, see SlackTuning.
        by_profile: Of primal_dual: slopes are the profile's where there is one, and not the constants'.
        margin: Of profile in agents of 0.1; the shares have taken its place.
        busy_high, busy_low, clock_step_mhz: Of threshold, see ThresholdClockConfig.
        reserve: Of slack, the share of a latency's target that is kept free.
        fixed_mhz: A person has fixed the clock there, whatever the rule; None: nobody does.
        advise: Nothing below the top is set: what the rule would set is reported as advice.
        floor_mhz: As far down as a person lets the rule go; what it would set below is advice. None: anywhere.
    """

    policy: str = "miad"
    period_s: float = 1.0
    increase: float = 2.0
    decrease_mhz: float = 100.0
    lease_s: float = LONGEST_LEASE_S
    paused: bool = False
    predictor_error: float = 0.3
    sample_s: float = 0.5
    full_at: float | None = None
    sensitivity: float | None = None
    power_exponent: float | None = None
    beta: float | None = None
    urgency: float | None = None
    margin: float | None = None
    min_saving: float | None = None
    reserve: float | None = None
    fixed_mhz: float | None = None
    advise: bool = False
    floor_mhz: float | None = None
    ttft_share: float = 1.0
    tpot_share: float = 1.0
    clock_floor: str = "gpu"
    clock_floor_mhz: float | None = None
    step_mhz: float = 200.0
    memory_s: float | None = None
    counts_ttft: bool = True
    full_iteration: bool = False
    by_sensitivity: bool = True
    by_profile: bool = True
    busy_high: float | None = None
    busy_low: float | None = None
    clock_step_mhz: float | None = None


class DesiredInstance(Message, frozen=True):
    """An instance that the node is to run, or (`state: draining`) to let finish and stop. Absent means stopped.

    `sleeping`: to be kept with its weights off the GPUs. `options` hold from its start, `engine_limits` are changed
    live. `shadow_of`: the instance that it is to replace. `clock`: its service's rule; None: the node's. `launch`: what
    the model card says of its weights and arguments. `shape`: the key by which the engine model knows the model; empty:
    by its name. `gpu_slices`: how many engines its GPU is for, each with an equal part; 1: it has its GPUs to itself.
    `mps`: CUDA MPS keeps it to its part of the threads too.
    """

    uid: str
    pool_id: int
    model: str
    engine: str
    gpu_uuids: list[str]
    max_model_len: int
    state: str  # running | sleeping | draining
    limits: LatencyLimits  # thresholds of the clock loop
    decision_id: int | None = None
    options: EngineOptions = EngineOptions()
    engine_limits: EngineLimits = EngineLimits()
    shadow_of: str = ""
    clock: ClockPolicy | None = None
    launch: EngineLaunch = EngineLaunch()
    shape: str = ""
    gpu_slices: int = 1
    mps: bool = False


class DesiredNode(Message, frozen=True):
    """Says what a node is to run.

    Attributes:
        clock: The rule of instances that bring none of their own.
        launches: What may be started here later.
        simulated_gpus: Types and counts, by index; empty: its machine is real. The supervisor runs simulated ones.
        gpu_types: Those of its GPUs that operators entered.
        measured: Measurements of services' models on its GPU types.
        profiles: Contents of the profiles that `measured` names. They do not travel: the reader adds them.
    """

    node: str
    version: int
    published_at_s: float
    instances: list[DesiredInstance]
    clock: ClockPolicy
    launches: list[EngineLaunch] = []
    simulated_gpus: list[tuple[str, int]] = []
    gpu_types: list[GpuType] = []
    measured: list[MeasuredEngine] = []
    profiles: list[Profile] = []


class ClockRequest(Message, frozen=True):
    """What a gateway wants an instance's clock to be, until the lease is over or it asks again.

    Of the gateways that ask for one instance the highest clock counts. With the rules `throttle`, `retail` and
    `deadline` it is the clock; with others it is a floor under the rule's own choice; with `fixed`, or while the rule
    is paused, nothing.

    Attributes:
        at_s: By the gateway's clock: an older request of its own does not undo a later one.
        lease_s: From its arrival on, at most LONGEST_CLOCK_LEASE_S; 0: nothing is asked for any more.
        reason, summary: For the record of decisions; the reason is a `core.types.Reason`.
    """

    uid: str
    gateway: str
    at_s: float
    mhz: float
    lease_s: float
    reason: str
    summary: str
