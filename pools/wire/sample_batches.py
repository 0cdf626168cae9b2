"""What processes tell each other through Redis: key names and message types, encoded by msgspec.

As JSON, but for agents' batches, which are MessagePack: they are what there is most of.

No Django here: the agent and the gateway import this module without a database. Messages are tolerant readers:
unknown fields are ignored, so one side can be upgraded before the other. Times are Unix seconds.

| key | kind | writer | reader |
|---|---|---|---|
| `greenserve:desired:<node>` | string, DesiredNode | scheduler.control | that node's agent, each second |
| `greenserve:agent:<node>` | string with expiry, AgentState | the agent, each second | gateway, snapshot |
| `greenserve:fleet` | string, Fleet; changes announced on channel `greenserve:fleet` | scheduler.control | gateways |
| `greenserve:worker:<uid>` | string with expiry, WorkerRegistration | gateways, for workers | gateways, ingester |
| `greenserve:workers` | sorted set, uid by the end of its lease | gateways, for workers | gateways, ingester |
| `greenserve:workers:measured` | string with expiry, AgentState of no node | the ingester, each second | gateways |
| `greenserve:clock:<node>` | channel, ClockRequest | gateways, as they decide | that node's agent, at once |
| `greenserve:batches` | stream, field `b` = AgentBatch | agents | telemetry ingester |
| `greenserve:requests` | stream, field `b` = RequestBatch | gateways | telemetry ingester |
| `greenserve:processes` | string with expiry, ProcessTable | supervisor, each second | health page |
| `greenserve:gateways` | sorted set, name by time of its last sign of life | gateways | gateways: how many they are |
| `greenserve:alive:<process>` | string with expiry, Heartbeat | every process | health page |
| `greenserve:tasks` | hash, sums by `<task>|<outcome>` and `<task>|seconds` | Celery workers | web's `/metrics` |
| `greenserve:simulation:<id>` | list with expiry, SimulationUpdate | a `simulations` worker | who asked for the run |
| `greenserve:simulation:<id>:stop` | string with expiry | who asked for the run | that worker, now and then |
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import msgspec

from core.engine.engine_launch import EngineLaunch
from core.ports import EngineLimits, EngineOptions

FLEET_KEY = "greenserve:fleet"
FLEET_CHANNEL = "greenserve:fleet"
BATCH_STREAM = "greenserve:batches"
REQUEST_STREAM = "greenserve:requests"
GATEWAYS_KEY = "greenserve:gateways"
WORKERS_KEY = "greenserve:workers"
MEASURED_WORKERS_KEY = "greenserve:workers:measured"
PROCESSES_KEY = "greenserve:processes"
TASKS_KEY = "greenserve:tasks"
INGEST_GROUP = "ingest"
AGENT_STATE_TTL_S = 10
HEARTBEAT_TTL_S = 60

DESIRED_PREFIX = "greenserve:desired:"
AGENT_PREFIX = "greenserve:agent:"
ALIVE_PREFIX = "greenserve:alive:"
CLOCK_PREFIX = "greenserve:clock:"
WORKER_PREFIX = "greenserve:worker:"
LONGEST_CLOCK_LEASE_S = 60.0


def desired_key(node: str) -> str:
    return DESIRED_PREFIX + node


def agent_key(node: str) -> str:
    return AGENT_PREFIX + node


def alive_key(process: str) -> str:
    return ALIVE_PREFIX + process


def clock_channel(node: str) -> str:
    """Where a node's agent hears what clocks gateways ask for. Nothing is kept: who is not there misses it."""
    return CLOCK_PREFIX + node


def worker_key(uid: str) -> str:
    return WORKER_PREFIX + uid


def node_queue(node: str) -> str:
    """The Celery queue of a node's agent."""
    return f"node.{node}"


class Message(msgspec.Struct, frozen=True, omit_defaults=False):
    """Base of all messages. `packed`: they travel as MessagePack."""

    packed: ClassVar[bool] = False


class LatencyLimits(Message, frozen=True):
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


# -- desired state: scheduler -> agent -------------------------------------------------------------


class ClockPolicy(Message, frozen=True):
    """A clock rule (`core.policy.presets.Knobs.clock`) and its knobs; each rule reads its own. None: as its controller
    has it.

    Attributes:
        policy: miad and primal_dual (FREESH eq. 5 and 4), profile (DynamoLLM IV-B), slack (mu-Serve Alg. 3), throttle
            and retail (what the gateways ask for, throttLL'eM IV-E and V-F3), fixed (top clock).
        period_s: Between decisions. `slack` samples latencies each `sample_s` within it.
        increase, decrease_mhz: M and delta of miad, and of slack.
        lease_s: How long a clock is held after it was last renewed.
        paused: All clocks at the top until further notice.
        predictor_error: By which predicted lengths are raised (throttle, retail).
        full_at, sensitivity, power_exponent, beta, urgency: Of primal_dual, see PrimalDualConfig.
        margin, min_saving: Of profile, see ProfileClockConfig.
        reserve: Of slack, the share of a latency's target that is kept free.
        fixed_mhz: A person holds the clock there, whatever the rule; None: nobody does.
        advise: Nothing below the top is set: what the rule would set is told as advice.
        floor_mhz: As far down as a person lets the rule go; what it would set below is told as advice. None: anywhere.
    """

    policy: str = "miad"
    period_s: float = 1.0
    increase: float = 2.0
    decrease_mhz: float = 100.0
    lease_s: float = 10.0
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


class DesiredInstance(Message, frozen=True):
    """An instance that the node is to run, or (`state: draining`) to let finish and stop. Absent means stopped.

    `sleeping`: to be kept with its weights off the GPUs. `options` hold from its start, `engine_limits` are changed
    live. `shadow_of`: the instance that it is to replace. `clock`: its service's rule; None: the node's. `launch`: what
    the model card says of its weights and arguments.
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


class DesiredNode(Message, frozen=True):
    """`clock` is the rule of instances that bring none of their own. `launches`: what may be started here later."""

    node: str
    version: int
    published_at_s: float
    instances: list[DesiredInstance]
    clock: ClockPolicy
    launches: list[EngineLaunch] = []


class ClockRequest(Message, frozen=True):
    """What a gateway wants an instance's clock to be, until the lease is over or it asks again.

    Of the gateways that ask for one instance the highest clock counts. With the rules `throttle` and `retail` it is the
    clock; with others it is a floor under the rule's own choice; with `fixed`, or while the rule is paused, nothing.

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


# -- live state: agent -> gateway and scheduler ----------------------------------------------------


class InstanceState(Message, frozen=True):
    """An instance as its agent sees it now. Latencies are means of what ended in the last period; None: nothing."""

    uid: str
    pool_id: int
    url: str | None
    state: str  # starting | ready | sleeping | draining | failed
    model: str
    engine: str
    gpu_type: str
    tp: int
    sm_clock_mhz: float | None
    min_mhz: float
    max_mhz: float
    power_w: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    detail: str = ""
    progress: float | None = None  # of a start or a waking, 0 to 1
    engine_limits: EngineLimits | None = None  # in force
    shadow_of: str = ""
    laxity: bool = False  # it reads hints for an order by laxity (docs/plugin.md)
    kv_connector: str = ""  # through which it hands caches to engines of the same one; empty: it cannot


class AgentState(Message, frozen=True):
    node: str
    boot: str
    at_s: float
    desired_version: int | None
    instances: list[InstanceState]
    error: str = ""
    metrics_url: str | None = None  # where the agent shows its metrics; None: it does not
    measure_only: str = ""  # why no clock can be set on this node; empty: clocks can be set
    notices: list[str] = []  # what its meters lack or disagree about; nothing that stops it


# -- fleet snapshot: scheduler -> gateway ----------------------------------------------------------


class FleetClass(Message, frozen=True):
    """A request class of the active partition. Upper bounds are exclusive; None: no bound. `rank` orders by size."""

    name: str
    rank: int
    input_min: int
    input_max: int | None
    output_min: int
    output_max: int | None


class FleetPool(Message, frozen=True):
    """A pool as gateways know it.

    Attributes:
        intensity_g_per_kwh: The average one, of the inventory: what a client is told of its request.
        share: What the carbon plan sends here of its class's requests; None: no plan says.
        marginal_g_per_kwh: What routing reckons with in place of the average: known only where it is for all the
            service's sites. A negative one counts as 0, as in the carbon epoch.
    """

    id: int
    site: str
    request_class: str
    pue: float
    intensity_g_per_kwh: float | None = None
    share: float | None = None
    marginal_g_per_kwh: float | None = None


class RequestPolicy(Message, frozen=True):
    """How the gateway treats a service's requests; each field is a knob of the service's policy.

    Attributes:
        route: least_energy | least_carbon | least_loaded | weighted_round_robin.
        by_share: Sites get the carbon plan's shares of each class, as far as their instances keep the limits.
        order: fcfs | sjf | srtf | edf | llf, of the requests that wait at the gateway.
        engine_priority: Send the order on as vLLM's `priority`; for engines that schedule by priority.
        engine_queue: Requests that may wait inside one engine; more wait here, where they can still be ordered.
        tenant_weights: Fair shares of tokens by tenant, 1 for those not named; None: tenants are not kept apart.
        max_queued_requests: Beyond this, or `max_queued_tokens`, a class's requests are refused with 429.
        admission: none | projection (throttLL'eM IV-C2).
        throttle: With projections, ask for the lowest feasible clock at each admission (throttLL'eM IV-E).
        retail: Ask for a clock at each arrival, by ReTail's rule (throttLL'eM V-F3).
        emergencies: Climb DynamoLLM's ladder (IV-D) when requests are about to be late.
        split: none | prompt (prefill and decode apart) | any (DynaServe).
    """

    route: str = "least_energy"
    by_share: bool = False
    order: str = "fcfs"
    aging_tokens_per_s: float = 20.0
    engine_priority: bool = False
    engine_queue: int = 32
    tenant_weights: dict[str, float] | None = None
    max_queued_requests: int = 2000
    max_queued_tokens: int = 20_000_000
    max_wait_s: float = 120.0
    admission: str = "none"
    predictor_error: float = 0.3
    throttle: bool = False
    retail: bool = False
    emergencies: bool = False
    split: str = "none"


class FleetService(Message, frozen=True):
    """What the gateway serves under the name `model`; objectives are the service's SLO.

    Attributes:
        expected_prompt_tokens, expected_output_tokens: Mean lengths that its operator expects; None: not declared.
        hugging_face_id: Of the model, where clients may find its tokenizer; empty: not known.
        tokenizer: The model's tokenizer.json, a file on the gateways' machines; empty: none.
    """

    name: str
    model: str
    engine: str
    max_model_len: int
    objectives: LatencyLimits
    partition: str
    classes: list[FleetClass]
    pools: list[FleetPool]
    policy: RequestPolicy = RequestPolicy()
    expected_prompt_tokens: int | None = None
    expected_output_tokens: int | None = None
    hugging_face_id: str = ""
    tokenizer: str = ""


class FleetKey(Message, frozen=True):
    """An API key: SHA-256 hex of the secret, and whose it is. `services` empty: all."""

    key_hash: str
    key_id: int
    tenant: str
    tenant_id: int
    services: list[str] = []
    expires_at_s: float | None = None


class Fleet(Message, frozen=True):
    version: int
    at_s: float
    services: list[FleetService]
    keys: list[FleetKey]
    nodes: list[str]


# -- workers that register themselves: gateway -> gateways, ingester --------------------------------


class WorkerRegistration(Message, frozen=True):
    """An engine that no agent runs, for as long as its lease lasts. The names were known when it registered.

    `request_class` None: the largest one. `site` None: the only one that has a pool for it.
    """

    uid: str
    url: str
    service: str
    gpu_type: str
    tp: int
    lease_s: float
    registered_at_s: float
    request_class: str | None = None
    site: str | None = None
    model: str | None = None  # None: the service's
    engine: str | None = None  # None: the service's


# -- samples: agent -> ingester --------------------------------------------------------------------


class GpuSampleRow(Message, frozen=True, gc=False):
    at_s: float
    gpu_uuid: str
    energy_j: float | None  # cumulative counter
    power_w: float | None
    sm_clock_mhz: float | None
    utilisation: float | None
    memory_used_bytes: int | None
    temperature_c: float | None
    instance_uid: str | None  # which instance held the GPU
    instance_state: str | None  # starting | ready | draining | failed
    running: int | None  # its running requests: busy or idle


class GpuLabels(Message, frozen=True, eq=False):
    """What rows of GPU samples are of, by column. One like another is another still, so that it can be a key."""

    gpu_uuids: list[str] = []
    instance_uids: list[str | None] = []  # which instance held the GPU
    instance_states: list[str | None] = []

    def __post_init__(self) -> None:
        rows = len(self.gpu_uuids)
        for name in ("instance_uids", "instance_states"):
            if len(getattr(self, name)) != rows:
                raise ValueError(f"{name} has {len(getattr(self, name))} values for {rows} GPUs")


GPU_NUMBERS = (
    *("at_s", "energy_j", "power_w", "sm_clock_mhz", "utilisation", "memory_used_bytes", "temperature_c", "running"),
)
NUMBER_BYTES = 8


class GpuSamples(Message, frozen=True):
    """Rows of GPU samples, packed: who reads thousands of them makes no object for each.

    Attributes:
        labels: GpuLabels in MessagePack. They seldom change, and a reader knows them again by their bytes.
        numbers: Of each row GPU_NUMBERS, as float64 in little-endian order; NaN: unknown. Integers are exact up to
            2**53. Later versions may append to them: what one does not know it passes over, what it misses is unknown.
    """

    labels: bytes = b""
    numbers: bytes = b""

    def __post_init__(self) -> None:
        """Raises ValueError where the numbers are not of all the rows, or the labels cannot be read."""
        rows = self.rows
        if len(self.numbers) % (NUMBER_BYTES * rows or 1) or bool(rows) != bool(self.numbers):
            raise ValueError(f"{len(self.numbers)} bytes are not the numbers of {rows} GPUs")

    @property
    def of_what(self) -> GpuLabels:
        return _labels(self.labels)

    @property
    def rows(self) -> int:
        return len(_labels(self.labels).gpu_uuids)

    @classmethod
    def pack(cls, rows: Sequence[GpuSampleRow]) -> GpuSamples:
        """What is not finite is unknown."""
        if not rows:
            return cls()
        labels = GpuLabels(
            [row.gpu_uuid for row in rows], [row.instance_uid for row in rows], [row.instance_state for row in rows]
        )
        values = [getattr(row, name) for row in rows for name in GPU_NUMBERS]
        finite = [math.nan if value is None or not math.isfinite(value) else value for value in values]
        return cls(msgspec.msgpack.encode(labels), struct.pack(f"<{len(finite)}d", *finite))

    def unpack(self) -> list[GpuSampleRow]:
        if not self.numbers:
            return []
        of, width = self.of_what, len(self.numbers) // (NUMBER_BYTES * self.rows or 1)
        labels = zip(of.gpu_uuids, of.instance_uids, of.instance_states, strict=True)
        found = []
        for (uuid, holder, state), numbers in zip(labels, struct.iter_unpack(f"<{width}d", self.numbers), strict=True):
            known = [None if math.isnan(number) else number for number in numbers]
            values: dict[str, Any] = {**dict.fromkeys(GPU_NUMBERS), **dict(zip(GPU_NUMBERS, known, strict=False))}
            for name in ("memory_used_bytes", "running"):
                values[name] = None if values[name] is None else int(values[name])
            found.append(GpuSampleRow(gpu_uuid=uuid, instance_uid=holder, instance_state=state, **values))
        return found


@lru_cache(maxsize=8_192)
def _labels(data: bytes) -> GpuLabels:
    return msgspec.msgpack.decode(data, type=GpuLabels) if data else GpuLabels()


class InstanceSampleRow(Message, frozen=True, gc=False):
    at_s: float
    instance_uid: str
    state: str
    running: int | None
    waiting: int | None
    kv_usage: float | None
    prompt_tokens_total: float | None
    generation_tokens_total: float | None
    ttft_s: float | None
    tpot_s: float | None
    sm_clock_mhz: float | None
    url: str | None = None
    detail: str = ""


class ClockDecision(Message, frozen=True):
    """A change of clock, or the end of a run of `held` equal decisions (run-length encoding of holds)."""

    at_s: float
    instance_uid: str
    reason: str
    summary: str
    from_mhz: float
    to_mhz: float
    held: int
    inputs: dict[str, float | int | str | None]


class AgentBatch(Message, frozen=True):
    """Rows of one agent, numbered without gaps by (agent, boot, seq): ingesting one twice changes nothing."""

    packed: ClassVar[bool] = True

    agent: str
    boot: str
    seq: int
    sent_at_s: float
    gpus: GpuSamples = GpuSamples()
    instances: list[InstanceSampleRow] = []
    clocks: list[ClockDecision] = []


# -- request records: gateway -> ingester ----------------------------------------------------------


class RequestRow(Message, frozen=True):
    """One request, written when it ended, however it ended.

    status: ok | client_error | client_gone | upstream_error | timeout | rejected. Token counts are the engine's
    (`usage`) where it gave them; `tokens_source` says usage | chunks | estimate.
    """

    request_id: str
    started_at_s: float
    service: str
    tenant_id: int | None
    key_id: int | None
    endpoint: str  # completions | chat | embeddings | responses
    stream: bool
    status: str
    http_status: int
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_source: str | None = None
    predicted_output_tokens: int | None = None
    prediction_source: str | None = None  # cache | boosted | history | prior | bound
    max_tokens: int | None = None
    request_class: str | None = None  # as classified
    actual_class: str | None = None  # by the true output length
    pool_id: int | None = None
    instance_uid: str | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None  # mean over the request
    itl_max_s: float | None = None
    e2e_s: float | None = None
    window_s: float | None = None  # fairness window W = 1.4 x Lat (FREESH C.2)
    timely_tokens: int | None = None  # tokens delivered within the window
    predicted_energy_j: float | None = None  # the increment that routing expected
    queue_s: float | None = None  # in the gateway's line; None: it did not stand in one
    lost: bool = False  # admitted although it cannot keep its own limits (throttLL'eM)
    own_ttft_s: float | None = None  # objectives that the request brought itself
    own_tpot_s: float | None = None
    attempts: int = 1
    route_reason: str = ""
    error: str = ""
    traceparent: str | None = None  # W3C Trace Context, as the client sent it


class RequestBatch(Message, frozen=True):
    gateway: str
    boot: str
    seq: int
    rows: list[RequestRow]


# -- processes -------------------------------------------------------------------------------------


class ProcessRow(Message, frozen=True):
    name: str
    pid: int | None
    state: str  # running | restarting | stopped
    started_at_s: float | None
    restarts: int
    log: str  # path of its log file
    last_exit: str = ""
    cpu_s: float | None = None  # of this process and all it started, since it started
    rss_bytes: int | None = None


class ProcessTable(Message, frozen=True):
    at_s: float
    processes: list[ProcessRow]


class Heartbeat(Message, frozen=True):
    """A sign of life of a process's own loop. It is late after `period_s` x 3."""

    process: str
    at_s: float
    period_s: float
    detail: str = ""


# -- simulations: a worker -> who asked for the run ------------------------------------------------

SIMULATIONS_QUEUE = "simulations"  # of Celery
BATCHES_QUEUE = "batches"
SIMULATION_KEPT_S = 3600


def simulation_key(run: str) -> str:
    return f"greenserve:simulation:{run}"


def simulation_stop_key(run: str) -> str:
    return f"{simulation_key(run)}:stop"


class SimulationUpdate(Message, frozen=True):
    """How a run stands. The last one has `figures`, or `error` in words for the operator."""

    simulated_s: float = 0.0
    share: float | None = None  # done, 0 to 1; None: not known
    figures: dict[str, Any] | None = None
    error: str = ""

    @property
    def last(self) -> bool:
        return self.figures is not None or bool(self.error)


M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    return msgspec.msgpack.encode(message) if message.packed else msgspec.json.encode(message)


def decode(data: bytes | str, kind: type[M]) -> M:
    """Raises msgspec.DecodeError (ValidationError names the field) when `data` is not a `kind`."""
    if not kind.packed:
        return msgspec.json.decode(data, type=kind)
    if isinstance(data, str):
        raise msgspec.DecodeError("MessagePack is bytes, not text")
    return msgspec.msgpack.decode(data, type=kind)
