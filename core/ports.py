"""Ports: the roles that adapters fill. Each has at most six methods and says its units, errors and blocking.

Errors are translated once, at the adapter: `PermanentError` will fail again, `RetryableError` may not.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .engine.engine_launch import EngineLaunch
from .length_odds import LengthOdds


class AdapterError(Exception):
    """Anything an adapter could not do, in words an operator understands."""


class PermanentError(AdapterError):
    """Trying again will not help: no permission, no such device, not supported."""


class RetryableError(AdapterError):
    """A passing fault: a time-out, a refused connection, a busy device."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one instant. `energy_j` is the cumulative counter, the meter; `power_w` is the check beside it."""

    uuid: str
    index: int
    gpu_type: str
    at_s: float
    energy_j: float | None
    power_w: float | None
    sm_clock_mhz: float | None
    utilisation: float | None  # 0..1
    memory_used_bytes: int | None
    temperature_c: float | None
    min_mhz: float
    max_mhz: float
    memory_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None  # why the clock is lower than asked for; empty: it is not
    ecc_errors: int | None = None  # uncorrected, since the driver was loaded


SCHEDULING_POLICIES = ("fcfs", "priority")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The way in which an engine schedules, fixed when it starts.

    `scheduling_policy` is vLLM's: with `priority` lower numbers go first, and are preempted last when the running
    sequences outgrow the KV cache. `preempt_for_waiting`, which vLLM does not have: a waiting request of a lower number
    takes the place of running ones in a full batch or cache.
    """

    scheduling_policy: str = "fcfs"
    preempt_for_waiting: bool = False

    def __post_init__(self) -> None:
        if self.scheduling_policy not in SCHEDULING_POLICIES:
            raise ValueError(f"scheduling_policy is one of {', '.join(SCHEDULING_POLICIES)}")
        if self.preempt_for_waiting and not self.by_priority:
            raise ValueError("preempt_for_waiting needs scheduling_policy priority")

    @property
    def by_priority(self) -> bool:
        return self.scheduling_policy == "priority"


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits of one iteration of an engine; they can be changed while it runs. The defaults are vLLM's.

    With `itl_limit_s` an iteration takes on no more of prompts beside decodes than it has that time for. With
    `chunk_tokens` above 0 it takes no more of any one prompt (vLLM's `long_prefill_token_threshold`), so that short
    ones come along. With `preempts_s` above 0, once in each stretch of so many seconds, running requests give way to
    waiting ones that are ahead of them by more than `margin_s`, in engines with the option `preempt_for_waiting`.
    `window_factor`: under least laxity first a request is due so many times its time alone after its arrival.
    """

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    itl_limit_s: float | None = None
    chunk_tokens: int = 0
    preempts_s: float = 0.0
    margin_s: float = 1.0
    window_factor: float = 1.4

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < 1 or self.max_num_seqs < 1:
            raise ValueError("max_num_batched_tokens and max_num_seqs are at least 1")
        if self.itl_limit_s is not None and not self.itl_limit_s > 0.0:
            raise ValueError("itl_limit_s is above 0, or null for no limit")
        if min(self.chunk_tokens, self.preempts_s, self.margin_s) < 0:
            raise ValueError("chunk_tokens, preempts_s and margin_s are at least 0")
        if not self.window_factor >= 1.0:
            raise ValueError("window_factor is at least 1")


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """The desired instance. `max_model_len` in tokens. `shadow_of`: the instance that it is to replace.

    `launch`: how a real engine is started; simulated ones need none of it. `shape`: by which the engine model knows the
    model; empty: by its name. `gpu_slices`: how many engines its GPU is for, each with an equal part; 1: it has its
    GPUs to itself. `mps`: CUDA MPS keeps it to its part of the threads too.
    """

    uid: str
    model: str
    engine: str
    gpu_uuids: tuple[str, ...]
    max_model_len: int
    options: EngineOptions = EngineOptions()
    limits: EngineLimits = EngineLimits()
    shadow_of: str = ""
    launch: EngineLaunch = field(default_factory=EngineLaunch)
    shape: str = ""
    gpu_slices: int = 1
    mps: bool = False

    @property
    def tp(self) -> int:
        return len(self.gpu_uuids)

    @property
    def engine_model_name(self) -> str:
        return self.shape or self.model


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """An instance on its node. `state`: starting | ready | sleeping | draining | failed; one that wakes is starting.

    `progress`: of a start or a waking, 0 to 1. `limits`: those in force. None: not known, or nothing goes on.
    `laxity`: it can order by laxity, and reads what it needs for that in `vllm_xargs` (docs/plugin.md). `kv_connector`:
    through which it hands caches to engines of the same one; empty: it cannot. `start`: warm (the weights were on the
    node) | cold (they had to be fetched); empty: not known. `advertised`: where gateways reach it; empty: at `url`, as
    its node does. `key`: what its clients have to send; empty: nothing. `kv_address`: HOST:PORT where it takes caches
    of other engines; empty: it takes none by the network. `paths`: of its HTTP interface, where requests are served;
    None: not known. `adapters`: of LoRA that it has loaded, by name. `reshards`: it can go over to other GPUs while it
    serves; `taking`: those to which it does, by rank, empty: it stays on its own.
    """

    uid: str
    state: str
    url: str | None
    gpu_uuids: tuple[str, ...]
    started_at_s: float
    detail: str = ""
    progress: float | None = None
    limits: EngineLimits | None = None
    shadow_of: str = ""
    laxity: bool = False
    kv_connector: str = ""
    start: str = ""
    advertised: str = ""
    key: str = field(default="", repr=False)
    kv_address: str = ""
    paths: tuple[str, ...] | None = None
    adapters: tuple[str, ...] = ()
    reshards: bool = False
    taking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineReading:
    """An engine's own metrics. Means are over what happened since the previous reading; None: missing or nothing."""

    at_s: float
    running: int | None
    waiting: int | None
    kv_usage: float | None  # 0..1
    prompt_tokens_total: float | None
    generation_tokens_total: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    missing: tuple[str, ...] = ()
    requests_total: float | None = None  # that have ended, and the tokens of their prompts and outputs
    request_prompt_tokens_total: float | None = None
    request_output_tokens_total: float | None = None


class GpuMeter(Protocol):
    """Reads the GPUs of one node. Blocks for at most its time-out; raises AdapterError."""

    def read(self) -> tuple[GpuReading, ...]: ...


# How a host's energy is known: by the kernel's RAPL counters, by the Zeus daemon that reads them, by the power that the
# node's baseboard controller tells (Redfish or IPMI), or by a constant that somebody declared.
HOST_METHODS = ("rapl-powercap", "zeusd", "redfish", "ipmi", "declared")


@dataclass(frozen=True, slots=True)
class HostReading:
    """One domain of a host's energy at one instant: of a node, all that is not a GPU.

    `domain`: its name on the node, such as `package-0`, `dram-0`, or what a declared constant is called. `energy_j`
    counts from the agent's start, and from 0 again where what came in between is not known. None: missing.
    """

    domain: str
    method: str  # of HOST_METHODS
    at_s: float
    energy_j: float | None
    power_w: float | None = None
    whole_node: bool = False  # the domain has the GPUs and all other domains in it: a meter at the node's supplies

    def __post_init__(self) -> None:
        if self.method not in HOST_METHODS:
            raise ValueError(f"method is one of {', '.join(HOST_METHODS)}, not '{self.method}'")


class HostMeter(Protocol):
    """Reads a host's energy on one node: processors, memory, and what else its supplies feed.

    Blocks for at most its time-out, 1 s; adapters to slower devices read in a thread of their own and give what that
    read last. Raises AdapterError.
    """

    def read(self) -> tuple[HostReading, ...]: ...

    def notices(self) -> tuple[str, ...]: ...

    def close(self) -> None: ...


# Clocks that nobody renews are to be back within 10 s: 1 s is for seeing that a lease is over, and for the driver.
# Agents renew each second, so that a healthy one may miss eight renewals.
LONGEST_LEASE_S = 9.0


class FrequencyActuator(Protocol):
    """Holds SM clocks below the top under a lease: unless renewed within `lease_s` the clock returns to its default.

    A lease longer than LONGEST_LEASE_S is cut to it.
    Blocks for at most its time-out; raises AdapterError.
    """

    def lock(self, gpu_uuids: Sequence[str], mhz: float, lease_s: float) -> None: ...

    def reset(self, gpu_uuids: Sequence[str]) -> None: ...


class InstanceRuntime(Protocol):
    """Starts and ends engines on one node. Idempotent by uid. `start` returns at once; `list` tells progress.

    `drain` stops the engine when its last request has ended, and lets it refuse new ones where it can; gateways are
    notified beforehand (`pools.agent.reconcile`). `stop` aborts what runs.
    Blocks for at most its time-out; raises AdapterError.
    """

    def list(self) -> tuple[InstanceStatus, ...]: ...

    def start(self, spec: InstanceSpec) -> None: ...

    def drain(self, uid: str) -> None: ...

    def stop(self, uid: str) -> None: ...


class EngineControl(Protocol):
    """Changes how a running engine works. Idempotent. Returns at once; `InstanceRuntime.list` tells what came of it.

    `sleep` gives the GPUs' memory back: at level 1 the weights go to the machine's memory, at level 2 they are dropped,
    at both the KV cache is. Requests that run are aborted, those that come wait until `wake`. `reshard` takes an engine
    to other GPUs, as many as its next TP degree (DynamoLLM IV-C); its requests go on there. Engines that cannot raise
    PermanentError.
    Blocks for at most its time-out; raises AdapterError.
    """

    def tune(self, uid: str, limits: EngineLimits) -> None: ...

    def sleep(self, uid: str, level: int = 1) -> None: ...

    def wake(self, uid: str) -> None: ...

    def reshard(self, uid: str, gpu_uuids: Sequence[str]) -> None: ...


PowerState = Literal["on", "off"]


class ServerPower(Protocol):
    """Switches one server: a machine with its GPUs, not an engine.

    `on` and `off` are asked for, not waited for: `state` tells what came of it. Each may be asked for again. `off` lets
    the operating system end first; with `force` the power is cut. `state` is None where nobody can tell.
    Blocks for at most two time-outs; raises AdapterError, whose words have no password.
    """

    def on(self) -> None: ...

    def off(self, force: bool = False) -> None: ...

    def state(self) -> PowerState | None: ...


class EngineMetrics(Protocol):
    """Reads one engine's metrics. Blocks for at most its time-out; raises AdapterError."""

    def scrape(self, uid: str, url: str) -> EngineReading: ...


@dataclass(slots=True)  # one is made for every request: freezing it would double what that costs
class RequestFeatures:
    """The features of a request that can be known cheaply before it runs. None: not known, or not looked at.

    Nothing of the prompt's text is in it but sizes, flags and a digest. The last message is the whole prompt of a
    completion; `at_s` is Unix time.
    """

    chat: bool
    at_s: float
    tenant_id: int | None = None
    text_bytes: int = 0  # UTF-8, tools' schemas included; 0 where the prompt came as token ids
    messages: int = 1  # prompts, of a completion
    sequences: int = 1  # answers that are generated: prompts x n
    max_tokens: int | None = None  # of one answer, as the client or the API set it; None: no limit
    last_role: str | None = None
    last_bytes: int | None = None
    has_system: bool | None = None
    has_stop: bool | None = None
    temperature: float | None = None
    wants_json: bool | None = None
    tools_bytes: int | None = None
    has_question: bool | None = None
    has_code: bool | None = None
    digit_share: float | None = None
    lines: int | None = None
    digest: Hashable = None  # names service, prompt and limit; None: too long to be worth it
    detailed: bool = True  # all of the above was looked at
    image_tokens: int = 0  # of its images, by the model's own rule; 0 where no rule is known


class LengthProxyModel(Protocol):
    """A small transformers model that reads prompts and says how long their answers are (mu-Serve, section 3.3).

    Blocks for milliseconds, so it is asked in batches and off the event loop.
    """

    def serves(self, service: str) -> bool:
        """Says whether it may have odds for a service, at once and from any thread."""

    def predict(self, services: Sequence[str], prompts: Sequence[str]) -> Sequence[LengthOdds | None]:
        """Returns the odds of each prompt (n,), which its service (n,) will answer; None: it cannot say.

        Raises AdapterError.
        """


class TextTokenizer(Protocol):
    """A model's own tokenizer. Blocks, about 2.5 ms for 1,000 tokens, without holding Python's lock meanwhile."""

    def count(self, texts: Sequence[str]) -> int: ...


class CoolDownError(RetryableError):
    """The other side wants to be left alone (429, Retry-After). `wait_s`: for so long, None where it did not say."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class IntensityPoint:
    """Carbon intensity, or the price, of one interval [start_s, end_s) in Unix seconds.

    `value_g_per_kwh` None: the feed has none, or tells prices; then `price_per_kwh` in `currency` (ISO 4217) is set.
    Negative is legal for marginal rates and prices. `updated_at_s`: when the provider last changed it, if it says.
    """

    zone: str
    start_s: float
    end_s: float
    value_g_per_kwh: float | None
    raw_value: float | None
    raw_unit: str
    signal: str  # average | marginal | price
    factor: str  # direct | lifecycle; "" of prices
    estimated: bool
    issued_at_s: float
    forecast: bool
    provider: str
    updated_at_s: float | None = None
    price_per_kwh: float | None = None
    currency: str = ""


@dataclass(frozen=True, slots=True)
class FeedCapabilities:
    """The capabilities of a source. `horizon_s`: how far its own forecast reaches, 0 where it has none.

    `lag_s`: how long after an interval its value comes, usually: newer than that it is not missing.
    """

    signals: tuple[str, ...]
    factors: tuple[str, ...]
    actuals: bool
    horizon_s: float
    step_s: float
    lag_s: float = 0.0


class CarbonProvider(Protocol):
    """One source of carbon intensity or price, for one signal. Blocks for at most its time-out; raises AdapterError.

    A value that the source has not is None or no point at all, never a number.
    """

    @property
    def capabilities(self) -> FeedCapabilities: ...

    def actuals(self, zone: str, start_s: float, end_s: float) -> tuple[IntensityPoint, ...]: ...

    def forecast(self, zone: str, now_s: float, horizon_s: float) -> tuple[IntensityPoint, ...]: ...
