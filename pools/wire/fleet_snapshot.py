"""The fleet as gateways know it: services, their classes, pools, policies and SLOs, and keys."""

from __future__ import annotations

from core.engine.gpu_types import GpuType
from core.engine.image_rule import ImageRule
from core.engine.profiles import Profile
from core.policy.tuning import LadderTuning
from pools.wire.desired_state import LatencyLimits
from pools.wire.measured_engines import MeasuredEngine
from pools.wire.message_codec import Message


class FleetClass(Message, frozen=True):
    """A request class of the active partition. Upper bounds are exclusive; None: no bound. `rank` orders by size.

    `limits`: what its requests are to be served within; None: the service's objectives. `hands_on`: the share of what
    comes to its pools that goes to those of the next larger class.
    """

    name: str
    rank: int
    input_min: int
    input_max: int | None
    output_min: int
    output_max: int | None
    limits: LatencyLimits | None = None
    hands_on: float = 0.0


class FleetPool(Message, frozen=True):
    """A pool as gateways know it.

    Attributes:
        intensity_g_per_kwh: The average one, of the inventory: what a client gets to know of its request.
        share: What the carbon plan sends here of its class's requests; None: no plan says.
        marginal_g_per_kwh: What routing uses in place of the average: known only where it is for all the
            service's sites. A negative one counts as 0, as in the carbon epoch.
        weights: By mode, what an instance can do: of turns it gets its part, and its load is divided by it. 1 where
            the scale loop plans none.
    """

    id: int
    site: str
    request_class: str
    pue: float
    intensity_g_per_kwh: float | None = None
    share: float | None = None
    marginal_g_per_kwh: float | None = None
    weights: dict[str, float] = {}


class RequestTuning(Message, frozen=True):
    """Carries what gateways read of the tuning: fields are RECORD_FIELD, and `ladder` is all of that record."""

    split_chunked: bool = True
    split_max_probes: int = 6
    split_margin_tokens: int = 20
    split_tolerance: float = 0.1
    split_candidates: int = 2
    split_first_share: float = 0.5
    split_calibrate_s: float = 1.0
    split_gain: float = 0.1
    throttle_max_tokens: int = 1024
    throttle_tbt_s: float | None = None
    throttle_ips: str = "engine"
    throttle_retry_s: float = 0.1
    ladder: LadderTuning = LadderTuning()
    profile_step_mhz: float = 200.0
    queue_window_factor: float = 1.4
    split_by_rates: bool = False


class RequestPolicy(Message, frozen=True):
    """The gateway's treatment of a service's requests; each field but `tuning` is a knob of its policy.

    Attributes:
        route: least_energy | least_carbon | least_loaded | weighted_round_robin | round_robin | predicted |
            least_backlog.
        by_share: Sites get the carbon plan's shares of each class, as far as their instances keep the limits.
        plan_ttft_share, plan_tpot_share: Of a limit, that plans keep: routes by predicted latencies keep it too.
        order: fcfs | sjf | spf | srtf | edf | llf, of the requests that wait at the gateway.
        engine_priority: Send the order on as vLLM's `priority`; for engines that schedule by priority.
        aging_measured: Aging goes by the lengths that the gateway predicts; `aging_tokens_per_s` is for those of 0.1.0.
        engine_queue: Requests that may wait inside one engine; more wait here, where they can still be ordered.
        tenant_weights: Fair shares of tokens by tenant, 1 for those not named; None: tenants are not kept apart.
        max_queued_requests: Beyond this, or `max_queued_tokens`, a class's requests are refused with 429.
        admission: none | projection (throttLL'eM IV-C2).
        predictor_error: By which projections and ReTail's rule raise predicted lengths.
        predictor_error_measured: Only until the gateway has measured it.
        throttle: With projections, ask for the lowest feasible clock at each admission (throttLL'eM IV-E).
        retail: Ask for a clock at each arrival, by ReTail's rule (throttLL'eM V-F3).
        deadline: Ask for the lowest clock at which the requests that are there keep their limits.
        iteration: Ask for the lowest clock at which the next iteration keeps its limits (VoltanaLLM).
        clock_ttft_share, clock_tpot_share: Of `deadline` and `iteration`: the shares of the limits that they keep.
        clock_floor, clock_floor_mhz: The lowest clock that is asked for, see Knobs.
        emergencies: Climb DynamoLLM's ladder (IV-D) when requests are about to be late, to `emergencies_up_to` at most.
        split: none | prompt (prefill and decode apart) | any (DynaServe).
        early_moves: Move a stream whose first token is overdue to where it can still come in time.
        wake_patience_s: For how long requests wait for a service that sleeps; None: it never sleeps.
        short_class_cost: Of a class that is too short for a request, where one that is too long costs 1.
    """

    route: str = "least_energy"
    by_share: bool = False
    order: str = "fcfs"
    aging_tokens_per_s: float = 20.0
    aging_measured: bool = False
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
    emergencies_up_to: str = "squash"
    split: str = "none"
    tuning: RequestTuning = RequestTuning()
    plan_ttft_share: float = 1.0
    plan_tpot_share: float = 1.0
    deadline: bool = False
    clock_ttft_share: float = 0.8
    clock_tpot_share: float = 0.8
    clock_floor: str = "gpu"
    clock_floor_mhz: float | None = None
    early_moves: bool = False
    predictor_error_measured: bool = False
    iteration: bool = False
    wake_patience_s: float | None = None
    short_class_cost: float = 1.0

    @property
    def by_deadlines(self) -> bool:
        """Says whether the gateway asks for clocks by the requests that are there."""
        return self.deadline or self.iteration


class FleetAdapter(Message, frozen=True):
    """A LoRA adapter of a service. `source`: what engines load it from, a Hugging Face id or a folder."""

    name: str
    source: str


class FleetService(Message, frozen=True):
    """A service that the gateway serves under the name `model`; objectives are the service's SLO.

    Attributes:
        expected_prompt_tokens, expected_output_tokens: Mean lengths that its operator expects; None: not declared.
        hugging_face_id: Of the model, where clients may find its tokenizer; empty: not known.
        tokenizer: The model's tokenizer.json, a file on the gateways' machines; empty: none.
        shape: The key by which the engine model knows the model; empty: by its name.
        images: How many tokens images of a chat take; None: it reads none, or the rule is not known.
        adapters: Those that engines load when a request asks for one, at most `max_loras` at once.
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
    shape: str = ""
    images: ImageRule | None = None
    adapters: list[FleetAdapter] = []
    max_loras: int = 1


class RequestLimits(Message, frozen=True):
    """Says what a tenant or a key may send, to all gateways together; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None


class RefusingBudget(Message, frozen=True):
    """A tenant's budget of a month, which refuses requests once it is spent.

    Attributes:
        ends_at_s: Unix time at which it begins anew.
        spent: What is spent of what, in words; empty: nothing of it is, as far as is known.
        tokens: That it has; None: it is of something else alone.
        tokens_used: By requests that came before `counted_to_s` (Unix time); gateways count those that come later.
    """

    ends_at_s: float
    spent: str = ""
    tokens: int | None = None
    tokens_used: int = 0
    counted_to_s: float = 0.0


class FleetKey(Message, frozen=True):
    """An API key: SHA-256 hex of the secret, and whose it is. `services` empty: all.

    Attributes:
        limits: The key's own, beside its tenant's; None: it has none.
        addresses: Networks that it may be used from; empty: any.
        cache_salt: What engines keep its tenant's prefixes apart by, 64 hex digits; empty: they are shared.
        budget: Its tenant's; None: it has none that refuses.
    """

    key_hash: str
    key_id: int
    tenant: str
    tenant_id: int
    services: list[str] = []
    expires_at_s: float | None = None
    limits: RequestLimits | None = None
    tenant_limits: RequestLimits | None = None
    addresses: list[str] = []
    cache_salt: str = ""
    budget: RefusingBudget | None = None


class Fleet(Message, frozen=True):
    """All of it. It travels as a whole to gateways of 0.1.0 alone; others read its parts by the FleetIndex.

    `gpu_types`: those that operators entered. `measured`: measurements of services' models; `profiles`: contents of
    those that it names, which do not travel with it: the reader adds them.
    """

    version: int
    at_s: float
    services: list[FleetService]
    keys: list[FleetKey]
    nodes: list[str]
    gpu_types: list[GpuType] = []
    measured: list[MeasuredEngine] = []
    profiles: list[Profile] = []


class FleetIndex(Message, frozen=True):
    """The versions of the fleet's parts, so that who has read a part reads it again only once it has changed.

    Attributes:
        version: Of this publishing; it grows from each to the next, restarts included.
        nodes: Names of all nodes.
        services: By name, the version that last changed it.
        keys: The version that last changed any key.
        keys_since: All keys that changed after this version are listed; who knows of older ones only reads all.
        gpu_types: All that operators entered.
        measured: Measurements of services' models.
        service_digests, profile_digests: Of the encoded services by name and profiles by version, hexadecimal.
        keys_digest: Of all encoded keys (`snapshot_signature.digest_of_all`).
    """

    version: int
    at_s: float
    nodes: list[str]
    services: dict[str, int]
    keys: int
    keys_since: int
    gpu_types: list[GpuType] = []
    measured: list[MeasuredEngine] = []
    service_digests: dict[str, str] = {}
    profile_digests: dict[str, str] = {}
    keys_digest: str = ""
