"""What the REST API returns, and the bodies that it takes.

Made from the API's OpenAPI document by `make client`: change the API, not this.
Structs are what is returned: None is not known, or not there. Typed dictionaries are fields of requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Required, TypedDict
from uuid import UUID

import msgspec

Time = Annotated[datetime, msgspec.Meta(tz=True)]

Arm = Literal["A", "B"]
Basis = Literal["measured", "measured in part", "data sheet"]
BootSource = Literal["measured", "declared", "assumed"]
Cadence = Literal["weekly", "monthly"]
ConsequenceLevel = Literal["error", "warning", "info"]
DecisionKind = Literal["carbon", "scale", "shard", "clock", "deferral"]
DeliveryState = Literal["pending", "sent", "failed"]
Desired = Literal["running", "sleeping", "draining", "stopped"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
EpochKind = Literal["carbon", "scale", "shard"]
EpochStatus = Literal["applied", "held", "infeasible", "failed", "advised", "waiting"]
Events = Literal["decision.made", "alert.opened", "alert.closed", "job.ended", "report.issued"]
FocusVersion = Literal["1.0", "1.2", "1.4"]
Generation = Literal["even", "profile", "metered"]
InstanceState = Literal["pending", "starting", "ready", "sleeping", "draining", "failed", "stopped"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
Kind = Literal["ppa", "certificate", "supplier", "residual"]
Level = Literal["bad", "warn"]
Loop = Literal["carbon", "scale", "shard", "clock"]
Matching = Literal["hourly", "period"]
Mode = Literal["act", "advise", "approve"]
NewReportBasis = Literal["usage", "allocation", "marginal", "none"]
NodeStateState = Literal["reporting", "silent", "off"]
OverrideKind = Literal["workers", "clock", "partition", "drain"]
Part = Literal["direct", "base", "idle", "transition", "unattributed", "demand"]
Phase = Literal["on", "goes off", "off", "boots"]
Policy = Literal[
    "greenserve",
    "greenserve_epochs",
    "freesh",
    "freesh_baseline",
    "min_energy",
    "dynamollm",
    "single_pool",
    "multi_pool",
    "scale_inst",
    "scale_shard",
    "scale_freq",
    "throttllem",
    "triton",
    "retail",
    "muserve",
    "alpaserve",
    "alpaserve_sched",
    "alpaserve_scaling",
    "dynaserve",
    "pd_coloc",
    "pd_disagg",
    "voltanallm",
    "biscale",
    "least_loaded",
    "disaggregated",
    "threshold",
]
PowerPort = Literal["none", "redfish", "wake_on_lan", "webhook", "simulated"]
Reason = Literal["ceiling", "others", "none_fit"]
RequestStatus = Literal["ok", "client_error", "client_gone", "upstream_error", "timeout", "rejected"]
Signal = Literal["average", "marginal", "price"]
Slicing = Literal["memory", "mps"]
SloKind = Literal["ttft", "tpot", "e2e"]
Source = Literal["measured", "published", "modelled"]
State = Literal["open", "acknowledged", "resolved"]
Status = Literal["pending", "approved", "rejected", "expired", "outdated"]
TenantBillBasis = Literal["usage", "allocation", "marginal"]
TrialState = Literal["planned", "running", "done", "cancelled"]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in force and the one that advises, side by side; `advised` is null where none does."""

    service: str
    in_force: FleetPrediction | None
    advised: FleetPrediction | None
    turns: tuple[AdviceTurn, ...]


class AdviceTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a loop of a policy that advised, with both fleets as they were predicted then."""

    epoch: int
    loop: str
    at: Time
    in_force: FleetPrediction
    advised: FleetPrediction


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """`value` and `threshold` are in `unit`: s, W, share (0 to 1), times, or a count.

    Attributes:
        subject: Whose: a site, node, pool, service; empty: all.
        step: What to do next.
        value: At last sight; null: it is not known now.
        since: When its rule began to hold.
        opened_at: When it had held for long enough.
        last_seen_at: When it was last seen to hold.
    """

    id: int
    rule: str
    subject: str
    level: Level
    state: State
    summary: str
    step: str
    value: float | None
    threshold: float
    unit: str
    decision: int | None
    since: Time
    opened_at: Time
    last_seen_at: Time
    resolved_at: Time | None
    acknowledged_at: Time | None
    acknowledged_by: str | None


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """The API's api key.

    Attributes:
        prefix: First characters, to tell keys apart.
        services: Names of the services that it may call; empty: all.
        addresses: Networks that it may call from, such as 192.0.2.0/24 or 2001:db8::/48; empty: anywhere.
        requests_per_minute: Requests a minute; empty: no limit.
        tokens_per_minute: Tokens a minute, of prompts and answers; empty: no limit.
        concurrent_requests: Requests at a time; empty: no limit.
    """

    id: int
    tenant: str
    label: str
    prefix: str
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    services: tuple[str, ...] | None
    addresses: tuple[str, ...] | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None


class AppliedStudy(msgspec.Struct, frozen=True, kw_only=True):
    """`without_effect`: sentences on what the service has now and changes nothing live."""

    policy: str
    knobs: Any
    without_effect: tuple[str, ...]


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """The API's approval."""

    id: int
    epoch: int
    service: str | None
    loop: str
    commands: tuple[Any, ...]
    status: Status
    created_at: Time
    expires_at: Time
    decided_at: Time | None
    decided_by: str | None
    note: str


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """`before` is null of what was made, `after` of what was deleted. Secrets are masked.

    Attributes:
        who: User name at that moment.
        key: Label and prefix of the token used.
        kind: What was changed, for example site.
    """

    id: int
    at: Time
    who: str
    key: str
    channel: str
    action: str
    kind: str
    object_key: str
    label: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str
    address: str | None


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """`certificate`: of who signs the control plane's certificates, PEM."""

    certificate: str


class BillPart(msgspec.Struct, frozen=True, kw_only=True):
    """Decimals as texts, with all their digits; null: not known, or of a part not. Money is in `currency`."""

    currency: str
    energy_j: str | None
    energy_kwh: str | None
    facility_kwh: str | None
    gpu_hours: str | None
    scope2_location_kgco2e: str | None
    scope2_market_kgco2e: str | None
    embodied_kgco2e: str | None
    electricity_cost: str | None
    gpu_hour_cost: str | None
    demand_charge: str | None
    due: str | None
    part: Part


class BillReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report that the bill is from. `warnings`: why its figures are not to be paid as they are.

    Attributes:
        signature: SHA-256 over the report's figures and inputs.
        signed_by: Empty: nobody has signed it.
    """

    id: int
    version: str
    signature: str
    signed_by: str
    warnings: tuple[str, ...]
    made_at: Time


class BillSums(msgspec.Struct, frozen=True, kw_only=True):
    """Decimals as texts, with all their digits; null: not known, or of a part not. Money is in `currency`."""

    currency: str
    energy_j: str | None
    energy_kwh: str | None
    facility_kwh: str | None
    gpu_hours: str | None
    scope2_location_kgco2e: str | None
    scope2_market_kgco2e: str | None
    embodied_kgco2e: str | None
    electricity_cost: str | None
    gpu_hour_cost: str | None
    demand_charge: str | None
    due: str | None


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The needs of fleets that know all requests beforehand and change at no cost."""

    energy_wh: float
    gpu_hours: float


class BroughtIn(msgspec.Struct, frozen=True, kw_only=True):
    """The versions that an import has. `created`: how many versions were not there before."""

    created: int
    profiles: tuple[EngineProfile, ...]


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant may use, emit and cost in a month. Its page says how much is used. Gateways refuse its requests
    once it is spent, where that is set.

    Attributes:
        amount: Electricity and GPU-hours of a month, in the currency.
        currency: Of the amount, such as USD.
        carbon_kg: kgCO2e of a month, location-based.
        energy_kwh: Serving energy of a month in kWh.
        tokens: Tokens of a month, of prompts and answers.
        refuses: Refuse the tenant's requests for the rest of the month once an amount is spent.
    """

    id: int
    url: str
    tenant: str
    amount: Decimal | None
    currency: str
    carbon_kg: Decimal | None
    energy_kwh: Decimal | None
    tokens: int | None
    refuses: bool
    etag: str


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one site that are run together."""

    id: int
    url: str
    site: str
    name: str
    etag: str


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A published figure beside ours: null while its runs are not done, or where they do not have it.

    Attributes:
        place: Where in the paper.
        calculated: Whether it comes from profiles or the engine model, not a run.
        why: Of a row that is off by more than 15 %; its figures are read off the runs.
        attainment: Of the run, where the figure is about energy, carbon, power or GPU time.
        baseline_attainment: Of the run that it is compared with.
        short: Whether the attainment is below the baseline's, or below 99 %.
    """

    label: str
    place: str
    unit: str
    published: float
    simulated: float | None
    calculated: bool
    ratio: float | None
    why: str
    attainment: float | None
    baseline_attainment: float | None
    short: bool


class Consequence(msgspec.Struct, frozen=True, kw_only=True):
    """A consequence of the change. An error keeps it from being stored; an empty `field` stands for the whole row."""

    level: ConsequenceLevel
    field: str
    text: str


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """What market-based emissions rest on (GHG Protocol, Scope 2).

    Attributes:
        factor_g_per_kwh: gCO2e/kWh by contract.
        mix: Share of each energy source, such as {"wind": 1}; empty: not declared. Of: coal, oil, gas, other
            fossil, nuclear, wind, wind offshore, solar, hydro, geothermal, marine, biomass, other renewable.
        volume_kwh: What it covers from valid_from to valid_to, for PPAs and certificates; empty where it is
            metered.
        generation: When the volume of a PPA or certificate is generated: what hourly matching goes by.
        profile: Of generation by a profile: 24 whole numbers, the weights of the UTC hours.
        source: Contract or certificate numbers, or the disclosure.
        bundled: Whether the attributes came with the energy itself; empty: not declared.
        vintage_year: Year in which the energy was generated.
        market: Market that it is from; that of the site.
        cancellation: Registry and number of the cancellation (retirement) for you.
    """

    id: int
    url: str
    site: str
    kind: Kind
    factor_g_per_kwh: Decimal
    mix: dict[str, Any]
    volume_kwh: Decimal | None
    generation: Generation
    profile: tuple[Any, ...]
    valid_from: Time
    valid_to: Time
    source: str
    bundled: bool | None
    vintage_year: int | None
    market: str
    cancellation: str
    entered_at: Time
    etag: str


class ContractHour(msgspec.Struct, frozen=True, kw_only=True):
    """What a contract whose generation is metered generated in an hour: what hourly matching goes by.

    Attributes:
        start_at: Start of the hour.
        energy_kwh: Generated in the hour for this contract; empty: not known.
        source: Whose meter, or which statement.
    """

    id: int
    url: str
    instrument: str
    start_at: Time
    energy_kwh: Decimal | None
    source: str
    entered_at: Time
    etag: str


class ControlMode(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the decisions of the policy that is configured: they act, are only shown, or wait for
    approval. `in_force`: the policy that acts meanwhile. `gateways_only`: none of its loops has acted yet, so
    that clocks stay at the top.

    Attributes:
        approve_within_s: A plan that waits longer for approval is out of date.
    """

    service: str
    policy: str
    in_force: str
    gateways_only: bool
    mode: Mode
    approve_within_s: float


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision. `site` is its pool's; null: it is of a whole service.

    Attributes:
        reason: Why: one of the reasons that steps give.
        held: Equal decisions before this one (run-length encoding).
    """

    id: int
    kind: DecisionKind
    at: Time
    service: str | None
    site: str | None
    epoch: int | None
    pool: int | None
    pool_name: str | None
    instance_uid: UUID | None
    reason: str
    summary: str
    held: int


class DecisionDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with what it was made from, what else there was, and what came of it.

    Attributes:
        reason: Why: one of the reasons that steps give.
        held: Equal decisions before this one (run-length encoding).
        realised: Filled once its horizon has passed.
    """

    id: int
    kind: DecisionKind
    at: Time
    service: str | None
    site: str | None
    epoch: int | None
    pool: int | None
    pool_name: str | None
    instance_uid: UUID | None
    reason: str
    summary: str
    held: int
    inputs: dict[str, Any]
    alternatives: tuple[dict[str, Any], ...]
    commands: tuple[dict[str, Any], ...]
    predicted: dict[str, Any]
    realised: dict[str, Any] | None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """`body` is the event's `data`.

    Attributes:
        due_at: When it is to be sent, or tried again.
    """

    uid: UUID
    subscription: str
    event: str
    subject: str
    body: dict[str, Any]
    state: DeliveryState
    attempts: int
    due_at: Time
    sent_at: Time | None
    error: str
    created_at: Time


class EmbodiedFactor(msgspec.Struct, frozen=True, kw_only=True):
    """Emissions of making a GPU and its share of the server.

    Attributes:
        gpu_kg: kgCO2e of one GPU.
        server_kg: kgCO2e of the server without its GPUs.
        valid_from: From when it holds.
        valid_to: Until when it holds; empty: until the next one.
        source: Where the figure is from: shown beside what it is used for.
        version: The source's own version or date.
    """

    id: int
    url: str
    gpu_type: str
    gpu_kg: float
    server_kg: float
    gpus_per_server: int
    lifespan_years: float
    valid_from: Time
    valid_to: Time | None
    source: str
    version: str
    entered_at: Time
    etag: str


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a configuration's profile; decisions go by the one whose `published_at` is not null.

    Attributes:
        model: The model that was measured.
        shape: The model's shape, or its name where no shape is known.
        origin: Who measured it, and where.
        points: How many it has; the CSV has them.
        measured_at: Empty: not known.
        published_at: Empty: no decision goes by it.
    """

    id: int
    model: str
    shape: str
    gpu_type: str
    tp: int
    engine: str
    version: str
    source: Source
    origin: str
    points: int
    measured_at: Time | None
    created_at: Time
    published_at: Time | None


class EngineProfileDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Also, of all points, the ratios to the closed form that are furthest from 1; null where it knows no such
    engine.

    Attributes:
        model: The model that was measured.
        shape: The model's shape, or its name where no shape is known.
        origin: Who measured it, and where.
        points: How many it has; the CSV has them.
        measured_at: Empty: not known.
        published_at: Empty: no decision goes by it.
    """

    id: int
    model: str
    shape: str
    gpu_type: str
    tp: int
    engine: str
    version: str
    source: Source
    origin: str
    points: int
    measured_at: Time | None
    created_at: Time
    published_at: Time | None
    time_ratio: float | None
    power_ratio: float | None


class EngineResidual(msgspec.Struct, frozen=True, kw_only=True):
    """Says by how much a configuration's engines differ of late from what is predicted of them, by its profile or
    the closed form.

    Attributes:
        shape: The model's shape, or its name where no shape is known.
        time_ratio: Measured over predicted seconds, over all clocks.
        power_ratio: Measured over predicted watts, over all clocks.
        windows: Seen of late, the older the less.
        drifted: Far enough that a new profile is worth its while.
        at: End of the last window.
        factors: The correction in force by clock; empty: there is none.
    """

    id: int
    shape: str
    gpu_type: str
    tp: int
    engine: str
    time_ratio: float
    power_ratio: float
    windows: float
    drifted: bool
    at: Time
    factors: tuple[ResidualFactor, ...]


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """The API's epoch."""

    id: int
    kind: EpochKind
    service: str
    index: int
    period_s: float
    due_at: Time
    started_at: Time
    finished_at: Time
    status: EpochStatus
    solve_s: float | None
    error: str


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """`base`: of the study that runs it; `trace`: what has to come with that, null where nothing has to.

    Attributes:
        stands_in: What is not the paper's own.
        bound: Whether the bound is worked out beside the runs.
    """

    name: str
    base: str
    title: str
    stands_in: str
    scenario: str
    trace: Trace | None
    bound: bool
    runs: tuple[ExperimentRun, ...]
    published: tuple[Published, ...]


class ExperimentResult(msgspec.Struct, frozen=True, kw_only=True):
    """The API's experiment result."""

    name: str
    title: str
    published: tuple[ComparedRow, ...]
    bound: Bound | None


class ExperimentRun(msgspec.Struct, frozen=True, kw_only=True):
    """The API's experiment run."""

    label: str
    policy: str
    set: tuple[str, ...]


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """A source of carbon intensity or of prices. Keys of providers are set in the environment, never here.

    Attributes:
        provider: Name of the adapter in settings.CARBON_PROVIDERS.
        zone: The provider's name of the zone; blank: the site's.
        factor: direct or lifecycle; blank: the provider's usual.
        refresh_s: Seconds between two calls; blank: as the others.
        source: Shown under every figure drawn from it.
        forecast_model: The model whose forecast counts; blank: the provider's own.
        failures: In a row.
        weather: Of its site, for its forecasts; null: no weather feed.
    """

    id: int
    url: str
    site: str
    signal: Signal
    provider: str
    zone: str
    factor: str
    refresh_s: float | None
    config: dict[str, Any]
    source: str
    forecast_model: str
    last_tried_at: Time | None
    last_ok_at: Time | None
    last_error: str
    last_error_at: Time | None
    failures: int
    weather: WeatherUse | None
    forecast_scores: tuple[ForecastScore, ...]
    etag: str


class FleetPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet under a policy, predicted by the engine model at the mean demand of the last minutes. Null figures are
    not known; `unknown` says why. Carbon and cost include the sites' PUE.
    """

    policy: str
    partition: str
    workers: dict[str, dict[str, int]]
    gpus: int
    demand_rps: float
    feasible: bool
    power_w: float | None
    carbon_g_per_h: float | None
    cost_per_h: float | None
    currency: str
    unknown: tuple[str, ...]


class ForecastScore(msgspec.Struct, frozen=True, kw_only=True):
    """Shows how a model did in the newest back-test of a feed, in the feed's unit: g/kWh, or currency a kWh.

    Attributes:
        steps: How far ahead each origin looked.
        mape: Mean error of the median, as a share of the truth.
        coverage: Share of the steps between the quantiles 0.1 and 0.9; null: not known.
        regret: What a kWh that waits for the lowest quarter of the steps ahead emits (or costs) by the forecast,
            beyond what it would by the truth; null: not known.
    """

    model: str
    chosen: bool
    scored_at: Time
    step_s: float
    steps: int
    origins: int
    samples: int
    quantile: float
    pinball: float
    mape: float | None
    coverage: float | None
    regret: float | None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """What plans count with.

    Attributes:
        gpu_type: Name in the engine model, for example A100-80GB.
    """

    id: int
    url: str
    node: str
    index: int
    uuid: str
    gpu_type: str
    memory_gb: float
    min_mhz: float
    max_mhz: float
    tdp_w: float
    site: str
    etag: str


class GpuHourRate(msgspec.Struct, frozen=True, kw_only=True):
    """What an hour of a GPU costs: bought, leased or rented.

    Attributes:
        gpu_type: As in the inventory of GPUs.
        valid_from: From when it holds.
        valid_to: Until when it holds; empty: until the next one.
        source: Where the figure is from: shown beside what it is used for.
        version: The source's own version or date.
    """

    id: int
    url: str
    site: str | None
    gpu_type: str
    rate_per_gpu_hour: float
    currency: str
    valid_from: Time
    valid_to: Time | None
    source: str
    version: str
    entered_at: Time
    etag: str


class GpuType(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU product beyond those that are shipped, by its data sheet. Plans count with wide margins.

    Attributes:
        name: For example L40S-48GB.
        driver_names: Names by which drivers know it: ["NVIDIA L40S"].
        peak_tflops: Dense, at 16 bit.
        fp8_tflops: Dense, at 8 bit; empty: it has no such units.
        fp4_tflops: Dense, at 4 bit; empty: it has no such units.
        memory_gb: Billions of bytes, as its driver says.
        memory_gb_per_s: Bandwidth of its memory.
        link_gb_per_s: To the other GPUs of its node, both directions together.
        idle_w: With nothing loaded; empty: as the type it is like.
        min_mhz: Lowest SM clock.
        max_mhz: Highest SM clock.
        like: The measured type whose efficiencies it is given until it has a profile of its own.
        source: Where these figures are from.
        assumed: Fields that the source lacks: ["min_mhz"].
    """

    id: int
    url: str
    name: str
    driver_names: tuple[Any, ...]
    peak_tflops: float
    fp8_tflops: float | None
    fp4_tflops: float | None
    memory_gb: float
    memory_gb_per_s: float
    link_gb_per_s: float
    tdp_w: float
    idle_w: float | None
    min_mhz: float
    max_mhz: float
    like: str
    source: str
    assumed: tuple[Any, ...]
    etag: str


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """The API's instance.

    Attributes:
        reshards: Its engine can go over to other GPUs while it serves.
        reshard_at: When it was last to go over to other GPUs in place. Empty: never.
        resharded_at: When it served there. Empty: not yet.
    """

    uid: UUID
    service: str
    site: str
    pool: int
    pool_name: str | None
    node: str | None
    model: str
    gpu_type: str
    tp: int
    desired: Desired
    state: InstanceState
    detail: str
    created_at: Time
    ready_at: Time | None
    reshards: bool
    reshard_at: Time | None
    resharded_at: Time | None
    stopped_at: Time | None
    decision: int | None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """`progress` is the share done, 0 to 1.

    Attributes:
        progress: Share done, 0 to 1.
    """

    uid: UUID
    kind: str
    state: JobState
    progress: float
    error: str
    cancel_requested: bool
    created_by: str | None
    created_at: Time
    started_at: Time | None
    finished_at: Time | None


class JobDetail(msgspec.Struct, frozen=True, kw_only=True):
    """`progress` is the share done, 0 to 1.

    Attributes:
        progress: Share done, 0 to 1.
    """

    uid: UUID
    kind: str
    state: JobState
    progress: float
    error: str
    cancel_requested: bool
    created_by: str | None
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    parameters: dict[str, Any]
    result: dict[str, Any] | None
    log: str


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """`broker_url`: the Redis through which the node's agent hears and reports; it has its own user's password in
    it. `notes`: what is to be known of the types of its GPUs. `certificate`: the node's, `authority`: of who
    signs all nodes', `redis_authority`: of who signs that of Redis' address, empty where the machine knows; PEM.
    """

    node: str
    cluster: str
    broker_url: str
    notes: tuple[str, ...]
    certificate: str
    authority: str
    redis_authority: str


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, of requests that ended well; null: there was none."""

    p50: float | None
    p90: float | None
    p99: float | None
    mean: float | None


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """`points`: pairs of Unix seconds (the bucket's start) and a value; null is a gap. Lines of `energy` and
    `carbon` are sums, as exact decimals: nothing entered is left out. Beside each point they say which share of
    the site's meters was heard, and whether the bucket counts as silent; those of `carbon` also which share of
    its energy has no intensity, so that its carbon is not in the value.
    """

    labels: dict[str, str]
    unit: str
    source: str
    points: tuple[tuple[float | None, ...], ...]
    heard_share: tuple[float | None, ...] | None = None
    silent: tuple[bool, ...] | None = None
    unknown_share: tuple[float | None, ...] | None = None


class LoraAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """A fine-tune of a service's model, which clients ask for by its own name. Engines load it when one does.

    Attributes:
        name: The `model` that clients send.
        source: Its weights: a Hugging Face id, or a folder on the nodes that have its engines.
        rank: `r` in its adapter_config.json.
    """

    id: int
    url: str
    service: str
    name: str
    source: str
    rank: int
    etag: str


class MadeApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """`secret` is what clients of the gateway send; it is shown this once (null where an answer is repeated).

    Attributes:
        prefix: First characters, to tell keys apart.
        services: Names of the services that it may call; empty: all.
        addresses: Networks that it may call from, such as 192.0.2.0/24 or 2001:db8::/48; empty: anywhere.
        requests_per_minute: Requests a minute; empty: no limit.
        tokens_per_minute: Tokens a minute, of prompts and answers; empty: no limit.
        concurrent_requests: Requests at a time; empty: no limit.
    """

    id: int
    tenant: str
    label: str
    prefix: str
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    services: tuple[str, ...] | None
    addresses: tuple[str, ...] | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    secret: str | None


class MadeSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """`secret` signs what is sent; it is shown this once (null where an answer is repeated)."""

    id: int
    name: str
    url: str
    events: tuple[Events, ...]
    enabled: bool
    created_by: str | None
    created_at: Time
    etag: str
    secret: str | None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What can be served.

    Attributes:
        config: The model's config.json as an object, from which its shape is computed; null: none, and the engine
            model must know the name.
        max_model_len: Longest prompt plus output, in tokens.
        engine: Engine parameters of the engine model.
        tokenizer: The model's tokenizer.json, a file on the gateways' machines; empty: prompts are estimated.
        weights: Folder on the nodes with the weights; empty: the Hugging Face id.
        dtype: Number format that engines compute in; auto: that of the weights.
        engine_arguments: vLLM's arguments, word by word: ["--kv-cache-dtype", "fp8"].
        engine_environment: Variables of engines: {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}.
    """

    id: int
    url: str
    name: str
    hugging_face_id: str
    config: dict[str, Any] | None
    max_model_len: int
    engine: str
    tokenizer: str
    weights: str
    dtype: Dtype
    engine_arguments: tuple[Any, ...]
    engine_environment: dict[str, Any]
    shape: dict[str, Any] | None
    etag: str


class ModelOnDisk(msgspec.Struct, frozen=True, kw_only=True):
    """The API's model on disk.

    Attributes:
        weights: As a model card names them: an id of Hugging Face, or a folder.
    """

    weights: str
    size_bytes: int


class ModelledBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one block under the baseline's policy. Null: not known, for the reason in `why`."""

    index: int
    energy_j: float | None
    carbon_g: float | None
    requests: int | None
    why: str


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with GPUs and an agent. Its agent is started with the same name.

    Attributes:
        schedulable: Off: epochs place nothing new here.
        gpu_slices: So many engines share each GPU, each with an equal part of its memory and TP 1; all have its
            one clock. 1: an engine has its GPUs to itself. It can be changed while no instance lives on the node.
        slicing: With MPS each gets its part of the threads too; the node's MPS daemon is for you to run.
        power_port: By it plans whose knob servers is power_off switch the server off while it is not needed.
        power_url: Of its BMC's system, https://BMC/redfish/v1/Systems/ID, or of the webhook. Its password or
            secret is in a file: docs/servers.md.
        power_mac: Of the network card that wakes it, for wake-on-LAN, for example 12:34:56:78:9a:bc.
        power_broadcast: To which the packet of wake-on-LAN goes; empty: 255.255.255.255.
        boot_s: Seconds from being switched on until its agent reports, until that is measured; empty: 600.
    """

    id: int
    url: str
    cluster: str
    name: str
    simulated: bool
    schedulable: bool
    gpu_slices: int
    slicing: Slicing
    power_port: PowerPort
    power_url: str
    power_mac: str
    power_broadcast: str
    boot_s: float | None
    site: str
    gpus: dict[str, int]
    etag: str


class NodeFinds(msgspec.Struct, frozen=True, kw_only=True):
    """`vllm`: its version. `fault`: why no engine can be started. `missing`: options that this vLLM lacks."""

    vllm: str
    fault: str
    missing: tuple[str, ...]
    models: tuple[ModelOnDisk, ...]


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """A node now. `finds` is null where its agent starts no engines, has not looked yet, or is silent.

    Attributes:
        age_s: Since its agent's last report.
        instances: Counts by state.
        server: What is being switched, in words; empty: nothing.
        power: Null where the node has no power port.
    """

    node: str
    state: NodeStateState
    age_s: float | None
    error: str
    notes: str
    instances: dict[str, int]
    failed: tuple[str, ...]
    unreachable: tuple[UnreachableInstance, ...]
    finds: NodeFinds | None
    server: str
    power: PowerState | None


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of change, as it went in the last seven days.

    Attributes:
        mean_s: The mean that plans use: the newest counts most.
        published_s: What plans use where nothing is measured.
    """

    change: str
    mean_s: float
    least_s: float
    most_s: float
    count: int
    newest: Time
    published_s: float | None


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """`value` by kind: workers of a pool by mode; `{"mhz": ...}` or `{"floor_mhz": ...}`; `{"partition": ...}`; or
    nothing for a drain.

    Attributes:
        reason: Why, for those who wonder later.
        ended_at: Ended by hand; empty: it was not.
    """

    id: int
    kind: OverrideKind
    service: str | None
    site: str | None
    pool: int | None
    pool_name: str | None
    instance_uid: UUID | None
    value: dict[str, Any]
    decision: int | None
    reason: str
    created_at: Time
    created_by: str | None
    expires_at: Time
    ended_at: Time | None
    ended_by: str | None


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A way to cut requests into classes by the lengths of prompt and answer."""

    id: int
    url: str
    name: str
    source: str
    etag: str


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause, in force until `ended_at` or `expires_at`; if both are null, until somebody resumes the loop.

    Attributes:
        reason: Why, for those who wonder later.
        expires_at: Empty: until somebody resumes it.
        ended_at: Ended by hand; empty: it was not.
    """

    id: int
    service: str | None
    loop: Loop
    reason: str
    created_at: Time
    created_by: str | None
    expires_at: Time | None
    ended_at: Time | None
    ended_by: str | None


class PeriodFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a period, of the names that a simulated run's have. Energy is the fleet's at the sites that the
    caller may see, as metered at the GPUs; null: not known, or of a part not.

    Attributes:
        requests: That began in the period.
        energy_wh_by: serving, idle, transition, unattributed; empty: without an engine.
        carbon_missing_wh: Energy without a carbon intensity.
        gpu_hours: Of GPUs with an engine.
        empty_gpu_hours: Of powered GPUs without one.
        clock_mhz: Mean of GPUs with an engine.
        decisions: How many, by loop and reason.
    """

    start_at: Time
    end_at: Time
    requests: int
    finished: int
    rejected: int
    energy_wh: float | None
    energy_wh_by: dict[str, float]
    carbon_g: float | None
    carbon_missing_wh: float
    gpu_hours: float | None
    empty_gpu_hours: float
    clock_mhz: float | None
    slo_attainment: float | None
    ttft_s: Latency
    tpot_s: Latency
    e2e_s: Latency
    decisions: dict[str, dict[str, int]]


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Where a service may run: with the first pool at a site it gets one there for each class.

    Attributes:
        warm: Engines kept warm beside those that are wanted: asleep, or loaded, without requests.
    """

    id: int
    url: str
    service: str
    site: str
    request_class: str
    warm: int
    partition: str
    gpu_budget: dict[str, int]
    workers: dict[str, int]
    etag: str


class PowerState(msgspec.Struct, frozen=True, kw_only=True):
    """A server that can be switched.

    Attributes:
        since: Of its phase; null: it has not been off.
        boot_s: From being switched on until its agent reports.
        fault: Why the newest call to its power port failed; empty: it did not.
    """

    phase: Phase
    since: Time | None
    boot_s: float
    boot_source: BootSource
    fault: str


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """It says what acts now and what would act then. `metered_w`: of the GPUs of its instances, by their meters.
    `change_w`: the difference of the two predictions; null where one of them is not known.
    """

    metered_w: float | None
    now: FleetPrediction
    then: FleetPrediction
    change_w: float | None
    notes: tuple[str, ...]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What one instance of a mode does for one class.

    Attributes:
        power_w: Whole instance, at max_rps.
    """

    id: int
    url: str
    model_card: str
    request_class: str
    gpu_type: str
    tp: int
    max_rps: float
    power_w: float
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    kind: Source
    source: str
    note: str
    etag: str


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The API's published.

    Attributes:
        place: Where in the paper.
    """

    label: str
    place: str
    unit: str
    published: float


class Pue(msgspec.Struct, frozen=True, kw_only=True):
    """Power usage effectiveness; without one the site's own field counts.

    Attributes:
        valid_from: From when it holds.
        valid_to: Until when it holds; empty: until the next one.
        source: Where the figure is from: shown beside what it is used for.
        version: The source's own version or date.
    """

    id: int
    url: str
    site: str
    value: float
    valid_from: Time
    valid_to: Time | None
    source: str
    version: str
    entered_at: Time
    etag: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`state`, `progress` and `error` are the job's; `summary` is null until it is done.

    Attributes:
        asked: The report's period, time zone, grouping, formats and sites.
        ledger_version: The newest settlement that is in it.
        progress: Share done, 0 to 1.
        summary: The figures that lists show; null is not known.
    """

    id: int
    asked: dict[str, Any]
    period_start: Time
    period_end: Time
    revision: int
    revises: int | None
    ledger_version: int | None
    created_at: Time
    job: UUID
    state: JobState
    progress: float
    error: str
    summary: dict[str, Any] | None
    signed_by: str
    signed_at: Time | None
    files: tuple[ReportFile, ...]


class ReportDetail(msgspec.Struct, frozen=True, kw_only=True):
    """`state`, `progress` and `error` are the job's; `summary` is null until it is done.

    Attributes:
        asked: The report's period, time zone, grouping, formats and sites.
        ledger_version: The newest settlement that is in it.
        progress: Share done, 0 to 1.
        summary: The figures that lists show; null is not known.
        changes: Intervals that differ from the revision before.
    """

    id: int
    asked: dict[str, Any]
    period_start: Time
    period_end: Time
    revision: int
    revises: int | None
    ledger_version: int | None
    created_at: Time
    job: UUID
    state: JobState
    progress: float
    error: str
    summary: dict[str, Any] | None
    signed_by: str
    signed_at: Time | None
    files: tuple[ReportFile, ...]
    changes: tuple[Any, ...]
    inputs: tuple[ReportInput, ...]


class ReportFile(msgspec.Struct, frozen=True, kw_only=True):
    """The API's report file."""

    format: str
    name: str
    sha256: str
    size_bytes: int
    rows: int | None


class ReportInput(msgspec.Struct, frozen=True, kw_only=True):
    """A rate, factor, intensity, contract or reserved share. `used_...`: the time of the period that it valued.

    Attributes:
        site: Empty: all.
        value: With its unit.
    """

    kind: str
    site: str
    value: str
    quality: str
    source: str
    version: str
    used_from_s: int | None
    used_to_s: int | None
    valid_from_s: int | None
    valid_to_s: int | None


class ReportSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A report that is made by itself when a week or month is over and settled.

    Attributes:
        asked: Fields of a report besides its period.
        recipients: Mail addresses.
        last_period: The newest period that was asked for.
    """

    id: int
    url: str
    name: str
    cadence: Cadence
    asked: dict[str, Any]
    recipients: tuple[Any, ...]
    enabled: bool
    last_period: str
    last_error: str
    etag: str


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The API's request.

    Attributes:
        prediction_source: What the output tokens were predicted by: text, memory, encoder, cache, boosted,
            history, prior; or bound: the request may not have as many as were expected.
        class_probability: How probable its class was, by what predicted it; null: that does not say.
        adapter: The LoRA adapter that it asked for; none: the service's model itself.
    """

    request_id: str
    started_at: Time
    service: str
    tenant: str | None
    endpoint: str
    stream: bool
    status: RequestStatus
    http_status: int
    prompt_tokens: int | None
    output_tokens: int | None
    predicted_output_tokens: int | None
    prediction_source: str | None
    request_class: str | None
    class_probability: float | None
    actual_class: str | None
    site: str | None
    pool: int | None
    pool_name: str | None
    instance_uid: UUID | None
    ttft_s: float | None
    tpot_s: float | None
    itl_max_s: float | None
    e2e_s: float | None
    predicted_energy_j: float | None
    attempts: int
    route_reason: str
    error: str
    slo_met: bool | None
    slo_failed: str
    adapter: str | None


class RequestClass(msgspec.Struct, frozen=True, kw_only=True):
    """A request class of a partition. Lower bounds are inclusive, upper ones exclusive; empty: no bound.

    Attributes:
        rank: Order by size; spilling goes upwards.
    """

    id: int
    url: str
    partition: str
    name: str
    rank: int
    input_min: int
    input_max: int | None
    output_min: int
    output_max: int | None
    ttft_threshold_s: float | None
    tpot_threshold_s: float | None
    e2e_threshold_s: float | None
    etag: str


class RequestUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a request. `measured`: its share of the meters; else only the energy that routing predicted."""

    measured: bool
    energy_j: float
    prefill_j: float | None
    decode_j: float | None
    gpu_s: float | None
    carbon_gco2e: float | None
    cost: float | None
    currency: str | None


class ResidualFactor(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on what is predicted at one clock; between two clocks they lie on a straight line.

    Attributes:
        time: On seconds.
        power: On watts.
    """

    sm_clock_mhz: float
    time: float
    power: float


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    """`certificates`: that held until now."""

    certificates: int


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """An arm's blocks that count and of which both are known: `blocks` of `of`. Shares are of the baseline."""

    arm: str
    blocks: int
    of: int
    metered_j: float | None
    modelled_j: float | None
    saved_energy_modelled: float | None
    metered_g: float | None
    modelled_g: float | None
    saved_carbon_modelled: float | None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Buckets are whole: from `start_at` up to `end_at`, which may be later than what was asked for."""

    name: str
    description: str
    start_at: Time
    end_at: Time
    step_s: float
    method: str
    series: tuple[Line, ...]


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A model offered to clients under a name, with objectives and a policy.

    Attributes:
        name: The `model` that clients send.
        partition: In force; the carbon epoch's. The policy may name another: greenserve serves all requests as
            one class. For classes of your own set the knob partition=NAME.
        partitions: Those the carbon epoch may choose from.
        expected_rps: Load to plan for until five minutes have been seen, in requests/s.
        expected_prompt_tokens: Mean length of prompts.
        expected_output_tokens: Mean length of answers.
        weight: Its part beside other services where GPUs are scarce: 2 is twice as many as 1.
        min_gpus: It has as many, where it needs them, before others get more than an instance for each class.
            What it does not need, others may use.
        max_gpus: It never has more, not even where GPUs are free. Empty: there is no limit.
        max_loras: LoRA adapters that an engine has loaded at once; for another one the least recently used goes.
        policy: A preset: the policy of a paper, or GreenServe's own.
        knobs: What is set otherwise than in the preset: knobs, and `tuning` by record.
        asleep_since: null: it is awake, or its policy has it never sleep.
        short: What GPUs it lacks; null: none, or it is alone.
    """

    id: int
    url: str
    name: str
    description: str
    model_card: str
    partition: str
    partitions: tuple[str, ...]
    expected_rps: float | None
    expected_prompt_tokens: int | None
    expected_output_tokens: int | None
    weight: float
    min_gpus: int
    max_gpus: int | None
    max_loras: int
    policy: Policy
    knobs: dict[str, Any]
    asleep_since: Time | None
    short: Shortage | None
    etag: str


class ShippedGpuType(msgspec.Struct, frozen=True, kw_only=True):
    """A type by its data sheet, with the fields of those that operators enter.

    Attributes:
        basis: Measured: its parameters were fitted to published measurements, in part: those of some engines.
            Else plans keep wide margins.
    """

    name: str
    basis: Basis
    driver_names: tuple[str, ...]
    peak_tflops: float
    fp8_tflops: float | None
    fp4_tflops: float | None
    memory_gb: float
    memory_gb_per_s: float
    link_gb_per_s: float
    tdp_w: float
    idle_w: float | None
    min_mhz: float
    max_mhz: float
    like: str
    source: str
    assumed: tuple[str, ...]


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that a service's load needs and that it does not get, and why.

    Attributes:
        gpus_wanted: GPUs that its load needs.
        gpus_given: GPUs that are its.
        unserved_rps: Requests a second that no instance is to carry.
        max_gpus: Its ceiling; null: that is not the reason.
        gpus_of_others: By service, GPUs that it could run on; empty where others are not the reason.
    """

    gpus_wanted: int
    gpus_given: int
    unserved_rps: float
    reason: Reason
    max_gpus: int | None
    gpus_of_others: dict[str, int]


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """The API's silence."""

    id: int
    rule: str
    subject: str
    reason: str
    created_by: str | None
    created_at: Time
    expires_at: Time


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A data centre: one zone of the grid, one PUE, one currency.

    Attributes:
        label: Name shown to people, for example Ashburn.
        rank: Order on pages.
        grid_zone: The carbon feeds' name of the grid zone, for example DE.
        market: Market that its contracts for electricity must be from, for example AIB; empty: not declared.
        time_zone: IANA name, for example Europe/Berlin.
        latitude: Degrees north of the equator, for its weather, for example 39.04; empty: unknown.
        longitude: Degrees east of Greenwich, west is negative, for example -77.49; empty: unknown.
        pue: Power usage effectiveness; the default is Uptime Institute's mean of 2025.
        power_cap_w: Cap on the site's power in watts; empty: none.
    """

    id: int
    url: str
    name: str
    label: str
    rank: int
    grid_zone: str
    market: str
    time_zone: str
    latitude: float | None
    longitude: float | None
    currency: str
    pue: float
    power_cap_w: float | None
    etag: str


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """So many of 100 requests within so many seconds."""

    id: int
    url: str
    service: str
    kind: SloKind
    objective_s: float
    percentile: float
    etag: str


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """`state`, `progress` and `error` are the job's.

    Attributes:
        base: What the scenario was made from.
        progress: Share done, 0 to 1.
        currency: Of all its prices.
        target: The share of requests that is to keep every objective.
    """

    id: int
    name: str
    base: str
    job: UUID
    state: JobState
    progress: float
    error: str
    currency: str
    target: float
    created_by: str | None
    created_at: Time


class StudyDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A study with its scenario, the scenario's assumptions, its runs, and their ratios to the first run.
    `experiment` compares published with simulated figures in a study of the base lab:NAME; it is null in others.

    Attributes:
        base: What the scenario was made from.
        progress: Share done, 0 to 1.
        currency: Of all its prices.
        target: The share of requests that is to keep every objective.
        notes: What the scenario assumes or leaves out, in sentences.
    """

    id: int
    name: str
    base: str
    job: UUID
    state: JobState
    progress: float
    error: str
    currency: str
    target: float
    created_by: str | None
    created_at: Time
    notes: tuple[Any, ...]
    scenario: dict[str, Any]
    runs: tuple[StudyRun, ...]
    comparison: dict[str, Any]
    experiment: ExperimentResult | None


class StudyRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `set`: fields of the scenario set otherwise; `progress`: share done, null where it is not known;
    `figures`: the simulator's (docs/simulator.md), null until it is done.

    Attributes:
        knobs: Keys of the policy that are set otherwise.
        changes: Fields set otherwise: key.key=value.
        progress: Share done; null: it is not known.
    """

    index: int
    label: str
    policy: str
    knobs: dict[str, Any]
    changes: tuple[Any, ...]
    state: JobState
    progress: float | None
    simulated_s: float
    error: str
    started_at: Time | None
    finished_at: Time | None
    figures: dict[str, Any] | None


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """The API's subscription."""

    id: int
    name: str
    url: str
    events: tuple[Events, ...]
    enabled: bool
    created_by: str | None
    created_at: Time
    etag: str


class SyntheticHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The API's synthetic history.

    Attributes:
        source: What made it up, in words; shown beside its figures.
    """

    id: int
    start_at: Time
    end_at: Time
    source: str
    made_at: Time


class Tariff(msgspec.Struct, frozen=True, kw_only=True):
    """What a site pays for electricity, in its local time.

    Attributes:
        price_per_kwh: When no window holds, in the currency.
        windows: Time of use: from, to, price_per_kwh, days, months
        demand_per_kw: For each kW of the month's peak quarter of an hour.
        valid_from: From when it holds.
        valid_to: Until when it holds; empty: until the next one.
        source: Where the figure is from: shown beside what it is used for.
        version: The source's own version or date.
    """

    id: int
    url: str
    site: str
    currency: str
    price_per_kwh: float
    windows: tuple[Any, ...]
    demand_per_kw: float
    valid_from: Time
    valid_to: Time | None
    source: str
    version: str
    entered_at: Time
    etag: str


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, and how much; their keys are under Keys.

    Attributes:
        requests_per_minute: Requests a minute; empty: no limit.
        tokens_per_minute: Tokens a minute, of prompts and answers; empty: no limit.
        concurrent_requests: Requests at a time; empty: no limit.
        shares_prefixes: Engines reuse cached beginnings of prompts among all tenants for which this is set.
    """

    id: int
    url: str
    name: str
    label: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    shares_prefixes: bool
    etag: str


class TenantBill(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's share of a month, by the report's own bill. Without a `report` nothing of it is known.

    Attributes:
        month: Of UTC.
        report: Null: there is none; POST /api/v1/reports/ asks for one.
        older: The ledger has settled more of the month since the report.
        totals: One for each currency; none: it bears nothing.
        parts: Null: the report is from before its parts were kept.
    """

    tenant: str
    month: str
    basis: TenantBillBasis
    report: BillReport | None
    older: bool
    totals: tuple[BillSums, ...]
    parts: tuple[BillPart, ...] | None


class TenantUse(msgspec.Struct, frozen=True, kw_only=True):
    """Serving energy metered at the GPUs, shared out by token-time; what is settled of it.

    Attributes:
        settled_until: Up to then all sites are settled; null: none is. Sums have what is settled so far.
        totals: One for each currency.
        rows: Groups, where `by` names some.
    """

    tenant: str
    start_at: Time
    end_at: Time
    settled_until: Time | None
    totals: tuple[UseSums, ...]
    rows: tuple[UseRow, ...]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A public trace that does not come with the product: fetch it at `url`, and send it with the study."""

    title: str
    url: str
    licence: str
    sha256: str


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial of policies A and B. `state`: planned, running, done or cancelled (`ended_why`). `other`: the second
    service of a trial by sites, which has the policy that `service` has not.

    Attributes:
        block_h: Hours of a block.
        pairs: Pairs of blocks.
        warm_up_s: Of each block, left out after its switch.
        ended_why: Why it was cancelled.
    """

    id: int
    service: str
    other: str | None
    policy_a: str
    knobs_a: dict[str, Any]
    policy_b: str
    knobs_b: dict[str, Any]
    block_h: int
    pairs: int
    warm_up_s: int
    begins_at: Time
    state: TrialState
    ended_why: str
    reason: str
    created_at: Time
    created_by: str | None


class TrialBaseline(msgspec.Struct, frozen=True, kw_only=True):
    """The energy and carbon of the same requests under `policy`: modelled. `state` is the newest job's.

    Attributes:
        progress: Share done, 0 to 1.
        missing: Blocks that count and are not in it yet.
    """

    policy: str
    job: UUID
    state: JobState
    progress: float
    error: str
    missing: int
    savings: tuple[Saving, ...]
    blocks: tuple[ModelledBlock, ...]


class TrialBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of policy A or B at a service; `switched_at` is null until the service got it.

    Attributes:
        pair: Returns which pair it is in: two turns, each with a block of every service.
    """

    index: int
    pair: int
    service: str
    arm: Arm
    starts_at: Time
    ends_at: Time
    switched_at: Time | None


class TrialDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A trial with its blocks, its `outcome`: figures of each block, and differences of B to A with 95 % intervals
    (`difference`: of `share` rows a share of A's, of others in the unit), and its modelled `baseline` (null:
    nobody has asked for it).

    Attributes:
        block_h: Hours of a block.
        pairs: Pairs of blocks.
        warm_up_s: Of each block, left out after its switch.
        ended_why: Why it was cancelled.
    """

    id: int
    service: str
    other: str | None
    policy_a: str
    knobs_a: dict[str, Any]
    policy_b: str
    knobs_b: dict[str, Any]
    block_h: int
    pairs: int
    warm_up_s: int
    begins_at: Time
    state: TrialState
    ended_why: str
    reason: str
    created_at: Time
    created_by: str | None
    blocks: tuple[TrialBlock, ...]
    outcome: dict[str, Any]
    baseline: TrialBaseline | None


class UnreachableInstance(msgspec.Struct, frozen=True, kw_only=True):
    """The API's unreachable instance.

    Attributes:
        why: Which gateways do not reach it, where and why.
    """

    uid: str
    why: str


class UseRow(msgspec.Struct, frozen=True, kw_only=True):
    """One group: it has those of `site`, `service`, `adapter` and `day` that `by` names. A day is one of UTC.

    Attributes:
        host_kwh: Of the hosts beside the GPUs; in no other figure.
        without_host_kwh: The GPUs' energy without a host meter beside it.
        adapter: The LoRA adapter that was asked for; null: the service itself.
    """

    currency: str
    energy_j: Decimal
    energy_kwh: Decimal
    facility_kwh: Decimal
    host_kwh: Decimal | None
    host_known_kwh: Decimal | None
    without_host_kwh: Decimal
    gpu_hours: Decimal
    scope2_location_kgco2e: Decimal | None
    scope2_location_known_kgco2e: Decimal
    without_intensity_kwh: Decimal
    embodied_kgco2e: Decimal | None
    cost: Decimal | None
    electricity_cost: Decimal
    gpu_hour_cost: Decimal
    without_tariff_kwh: Decimal
    prompt_tokens: Decimal
    output_tokens: Decimal
    site: str | None = None
    service: str | None = None
    adapter: str | None = None
    day: date | None = None


class UseSums(msgspec.Struct, frozen=True, kw_only=True):
    """Decimals as texts, with all their digits; null: not known, or of a part not. Money is in `currency`.

    Attributes:
        host_kwh: Of the hosts beside the GPUs; in no other figure.
        without_host_kwh: The GPUs' energy without a host meter beside it.
    """

    currency: str
    energy_j: Decimal
    energy_kwh: Decimal
    facility_kwh: Decimal
    host_kwh: Decimal | None
    host_known_kwh: Decimal | None
    without_host_kwh: Decimal
    gpu_hours: Decimal
    scope2_location_kgco2e: Decimal | None
    scope2_location_known_kgco2e: Decimal
    without_intensity_kwh: Decimal
    embodied_kgco2e: Decimal | None
    cost: Decimal | None
    electricity_cost: Decimal
    gpu_hour_cost: Decimal
    without_tariff_kwh: Decimal
    prompt_tokens: Decimal
    output_tokens: Decimal


class ValidationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a validation: whether the change would be stored, and its consequences."""

    valid: bool
    consequences: tuple[Consequence, ...]


class WeatherFeed(msgspec.Struct, frozen=True, kw_only=True):
    """A provider of a site's weather, for forecasts of its carbon. Without one nobody is asked.

    Attributes:
        provider: open_meteo, or weather_csv for a file.
        refresh_s: Seconds between two calls; blank: an hour.
        source: Whose data it is, shown beside it.
        failures: In a row.
    """

    id: int
    url: str
    site: str
    provider: str
    refresh_s: float | None
    config: dict[str, Any]
    source: str
    last_tried_at: Time | None
    last_ok_at: Time | None
    last_error: str
    last_error_at: Time | None
    failures: int
    etag: str


class WeatherUse(msgspec.Struct, frozen=True, kw_only=True):
    """The weather of a feed's site.

    Attributes:
        provider: Where it comes from.
        used: The forecast that counts reads it (trees with weather).
        last_ok_at: When it came last; null: never.
        last_error: What went wrong the last time; empty: nothing.
    """

    provider: str
    used: bool
    last_ok_at: Time | None
    last_error: str


class ApplyStudy(TypedDict, total=False):
    """The API's apply study."""

    service: Required[str]
    advise: bool


class BudgetChanges(TypedDict, total=False):
    """What a tenant may use, emit and cost in a month. Its page says how much is used. Gateways refuse its requests
    once it is spent, where that is set.

    Attributes:
        amount: Electricity and GPU-hours of a month, in the currency.
        currency: Of the amount, such as USD.
        carbon_kg: kgCO2e of a month, location-based.
        energy_kwh: Serving energy of a month in kWh.
        tokens: Tokens of a month, of prompts and answers.
        refuses: Refuse the tenant's requests for the rest of the month once an amount is spent.
    """

    tenant: str
    amount: Decimal | float | None
    currency: str
    carbon_kg: Decimal | float | None
    energy_kwh: Decimal | float | None
    tokens: int | None
    refuses: bool


class BudgetChange(BudgetChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class CancelTrial(TypedDict, total=False):
    """The API's cancel trial."""

    reason: Required[str]


class ChangedApiKeyChanges(TypedDict, total=False):
    """Changes what is sent; null: all services, any address, no limit, no end."""

    label: str
    expires_at: datetime | None
    services: Sequence[str] | None
    addresses: Sequence[str] | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None


class ChangedApiKeyChange(ChangedApiKeyChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class ClusterChanges(TypedDict, total=False):
    """Nodes of one site that are run together."""

    site: str
    name: str


class ClusterChange(ClusterChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class ContractChanges(TypedDict, total=False):
    """What market-based emissions rest on (GHG Protocol, Scope 2).

    Attributes:
        factor_g_per_kwh: gCO2e/kWh by contract.
        mix: Share of each energy source, such as {"wind": 1}; empty: not declared. Of: coal, oil, gas, other
            fossil, nuclear, wind, wind offshore, solar, hydro, geothermal, marine, biomass, other renewable.
        volume_kwh: What it covers from valid_from to valid_to, for PPAs and certificates; empty where it is
            metered.
        generation: When the volume of a PPA or certificate is generated: what hourly matching goes by.
        profile: Of generation by a profile: 24 whole numbers, the weights of the UTC hours.
        source: Contract or certificate numbers, or the disclosure.
        bundled: Whether the attributes came with the energy itself; empty: not declared.
        vintage_year: Year in which the energy was generated.
        market: Market that it is from; that of the site.
        cancellation: Registry and number of the cancellation (retirement) for you.
    """

    site: str
    kind: Kind
    factor_g_per_kwh: Decimal | float
    mix: Mapping[str, Any]
    volume_kwh: Decimal | float | None
    generation: Generation
    profile: Sequence[Any]
    valid_from: datetime
    valid_to: datetime
    source: str
    bundled: bool | None
    vintage_year: int | None
    market: str
    cancellation: str


class ContractChange(ContractChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class ContractHourChanges(TypedDict, total=False):
    """What a contract whose generation is metered generated in an hour: what hourly matching goes by.

    Attributes:
        start_at: Start of the hour.
        energy_kwh: Generated in the hour for this contract; empty: not known.
        source: Whose meter, or which statement.
    """

    instrument: str
    start_at: datetime
    energy_kwh: Decimal | float | None
    source: str


class ContractHourChange(ContractHourChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class DataSheet(TypedDict, total=False):
    """A GPU type's data sheet: FLOP/s dense, bytes/s, GB, W and MHz."""

    name: Required[str]
    peak_flops: Required[float]
    hbm_bw: Required[float]
    mem_gb: Required[float]
    tdp_w: Required[float]
    f_max: Required[float]
    f_min: Required[float]
    link_bw: Required[float]
    like: Required[str]
    source: Required[str]
    fp8_flops: float
    fp4_flops: float
    idle_w: float
    nvml: Sequence[str]
    assumed: Sequence[str]


class EmbodiedFactorChanges(TypedDict, total=False):
    """Emissions of making a GPU and its share of the server.

    Attributes:
        gpu_kg: kgCO2e of one GPU.
        server_kg: kgCO2e of the server without its GPUs.
        valid_from: From when it holds.
        valid_to: Until when it holds; empty: until the next one.
        source: Where the figure is from: shown beside what it is used for.
        version: The source's own version or date.
    """

    gpu_type: str
    gpu_kg: float
    server_kg: float
    gpus_per_server: int
    lifespan_years: float
    valid_from: datetime
    valid_to: datetime | None
    source: str
    version: str


class EmbodiedFactorChange(EmbodiedFactorChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class FeedChanges(TypedDict, total=False):
    """A source of carbon intensity or of prices. Keys of providers are set in the environment, never here.

    Attributes:
        provider: Name of the adapter in settings.CARBON_PROVIDERS.
        zone: The provider's name of the zone; blank: the site's.
        factor: direct or lifecycle; blank: the provider's usual.
        refresh_s: Seconds between two calls; blank: as the others.
        source: Shown under every figure drawn from it.
        forecast_model: The model whose forecast counts; blank: the provider's own.
    """

    site: str
    signal: Signal
    provider: str
    zone: str
    factor: str
    refresh_s: float | None
    config: Mapping[str, Any]
    source: str
    forecast_model: str


class FeedChange(FeedChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class GpuChanges(TypedDict, total=False):
    """What plans count with.

    Attributes:
        gpu_type: Name in the engine model, for example A100-80GB.
    """

    node: str
    index: int
    uuid: str
    gpu_type: str
    memory_gb: float
    min_mhz: float
    max_mhz: float
    tdp_w: float


class GpuChange(GpuChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class GpuHourRateChanges(TypedDict, total=False):
    """What an hour of a GPU costs: bought, leased or rented.

    Attributes:
        gpu_type: As in the inventory of GPUs.
        valid_from: From when it holds.
        valid_to: Until when it holds; empty: until the next one.
        source: Where the figure is from: shown beside what it is used for.
        version: The source's own version or date.
    """

    site: str | None
    gpu_type: str
    rate_per_gpu_hour: float
    currency: str
    valid_from: datetime
    valid_to: datetime | None
    source: str
    version: str


class GpuHourRateChange(GpuHourRateChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class GpuOffer(TypedDict, total=False):
    """A GPU as the driver describes it; null where the driver does not say.

    Attributes:
        sheet: Of a type that the machine does not know, by its driver's figures.
        lacking: The figures for want of which there is no sheet.
    """

    uuid: Required[str]
    index: Required[int]
    name: Required[str]
    gpu_type: Required[str]
    memory_bytes: Required[int]
    min_mhz: Required[float]
    max_mhz: Required[float]
    tdp_w: float | None
    nvlinks: int | None
    mig_slices: int | None
    sheet: DataSheet | None
    lacking: Sequence[str]


class GpuTypeChanges(TypedDict, total=False):
    """A GPU product beyond those that are shipped, by its data sheet. Plans count with wide margins.

    Attributes:
        name: For example L40S-48GB.
        driver_names: Names by which drivers know it: ["NVIDIA L40S"].
        peak_tflops: Dense, at 16 bit.
        fp8_tflops: Dense, at 8 bit; empty: it has no such units.
        fp4_tflops: Dense, at 4 bit; empty: it has no such units.
        memory_gb: Billions of bytes, as its driver says.
        memory_gb_per_s: Bandwidth of its memory.
        link_gb_per_s: To the other GPUs of its node, both directions together.
        idle_w: With nothing loaded; empty: as the type it is like.
        min_mhz: Lowest SM clock.
        max_mhz: Highest SM clock.
        like: The measured type whose efficiencies it is given until it has a profile of its own.
        source: Where these figures are from.
        assumed: Fields that the source lacks: ["min_mhz"].
    """

    name: str
    driver_names: Sequence[Any]
    peak_tflops: float
    fp8_tflops: float | None
    fp4_tflops: float | None
    memory_gb: float
    memory_gb_per_s: float
    link_gb_per_s: float
    tdp_w: float
    idle_w: float | None
    min_mhz: float
    max_mhz: float
    like: str
    source: str
    assumed: Sequence[Any]


class GpuTypeChange(GpuTypeChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class LoraAdapterChanges(TypedDict, total=False):
    """A fine-tune of a service's model, which clients ask for by its own name. Engines load it when one does.

    Attributes:
        name: The `model` that clients send.
        source: Its weights: a Hugging Face id, or a folder on the nodes that have its engines.
        rank: `r` in its adapter_config.json.
    """

    service: str
    name: str
    source: str
    rank: int


class LoraAdapterChange(LoraAdapterChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class ModelChanges(TypedDict, total=False):
    """What can be served.

    Attributes:
        config: The model's config.json as an object, from which its shape is computed; null: none, and the engine
            model must know the name.
        max_model_len: Longest prompt plus output, in tokens.
        engine: Engine parameters of the engine model.
        tokenizer: The model's tokenizer.json, a file on the gateways' machines; empty: prompts are estimated.
        weights: Folder on the nodes with the weights; empty: the Hugging Face id.
        dtype: Number format that engines compute in; auto: that of the weights.
        engine_arguments: vLLM's arguments, word by word: ["--kv-cache-dtype", "fp8"].
        engine_environment: Variables of engines: {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}.
    """

    name: str
    hugging_face_id: str
    config: Mapping[str, Any] | None
    max_model_len: int
    engine: str
    tokenizer: str
    weights: str
    dtype: Dtype
    engine_arguments: Sequence[Any]
    engine_environment: Mapping[str, Any]


class ModelChange(ModelChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class NewApiKey(TypedDict, total=False):
    """Changes what is sent; null: all services, any address, no limit, no end."""

    label: str
    expires_at: datetime | None
    services: Sequence[str] | None
    addresses: Sequence[str] | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    tenant: Required[str]


class NewBudget(TypedDict, total=False):
    """What a tenant may use, emit and cost in a month. Its page says how much is used. Gateways refuse its requests
    once it is spent, where that is set.

    Attributes:
        amount: Electricity and GPU-hours of a month, in the currency.
        currency: Of the amount, such as USD.
        carbon_kg: kgCO2e of a month, location-based.
        energy_kwh: Serving energy of a month in kWh.
        tokens: Tokens of a month, of prompts and answers.
        refuses: Refuse the tenant's requests for the rest of the month once an amount is spent.
    """

    tenant: Required[str]
    amount: Decimal | float | None
    currency: str
    carbon_kg: Decimal | float | None
    energy_kwh: Decimal | float | None
    tokens: int | None
    refuses: bool


class NewCluster(TypedDict, total=False):
    """Nodes of one site that are run together."""

    site: Required[str]
    name: Required[str]


class NewContract(TypedDict, total=False):
    """What market-based emissions rest on (GHG Protocol, Scope 2).

    Attributes:
        factor_g_per_kwh: gCO2e/kWh by contract.
        mix: Share of each energy source, such as {"wind": 1}; empty: not declared. Of: coal, oil, gas, other
            fossil, nuclear, wind, wind offshore, solar, hydro, geothermal, marine, biomass, other renewable.
        volume_kwh: What it covers from valid_from to valid_to, for PPAs and certificates; empty where it is
            metered.
        generation: When the volume of a PPA or certificate is generated: what hourly matching goes by.
        profile: Of generation by a profile: 24 whole numbers, the weights of the UTC hours.
        source: Contract or certificate numbers, or the disclosure.
        bundled: Whether the attributes came with the energy itself; empty: not declared.
        vintage_year: Year in which the energy was generated.
        market: Market that it is from; that of the site.
        cancellation: Registry and number of the cancellation (retirement) for you.
    """

    site: Required[str]
    kind: Required[Kind]
    factor_g_per_kwh: Required[Decimal | float]
    mix: Mapping[str, Any]
    volume_kwh: Decimal | float | None
    generation: Generation
    profile: Sequence[Any]
    valid_from: Required[datetime]
    valid_to: Required[datetime]
    source: Required[str]
    bundled: bool | None
    vintage_year: int | None
    market: str
    cancellation: str


class NewContractHour(TypedDict, total=False):
    """What a contract whose generation is metered generated in an hour: what hourly matching goes by.

    Attributes:
        start_at: Start of the hour.
        energy_kwh: Generated in the hour for this contract; empty: not known.
        source: Whose meter, or which statement.
    """

    instrument: Required[str]
    start_at: Required[datetime]
    energy_kwh: Decimal | float | None
    source: Required[str]


class NewControlMode(TypedDict, total=False):
    """The API's new control mode."""

    mode: Required[Mode]
    approve_within_s: float


class NewEmbodiedFactor(TypedDict, total=False):
    """Emissions of making a GPU and its share of the server.

    Attributes:
        gpu_kg: kgCO2e of one GPU.
        server_kg: kgCO2e of the server without its GPUs.
        valid_from: From when it holds.
        valid_to: Until when it holds; empty: until the next one.
        source: Where the figure is from: shown beside what it is used for.
        version: The source's own version or date.
    """

    gpu_type: str
    gpu_kg: Required[float]
    server_kg: float
    gpus_per_server: int
    lifespan_years: Required[float]
    valid_from: Required[datetime]
    valid_to: datetime | None
    source: Required[str]
    version: Required[str]


class NewEngineProfiles(TypedDict, total=False):
    """Profiles: `rows`, objects with the columns of docs/fidelity.md, or `csv`, the text of such a table.

    Attributes:
        publish: Also publish each of them.
    """

    rows: Sequence[Mapping[str, Any]]
    csv: str
    publish: bool


class NewFeed(TypedDict, total=False):
    """A source of carbon intensity or of prices. Keys of providers are set in the environment, never here.

    Attributes:
        provider: Name of the adapter in settings.CARBON_PROVIDERS.
        zone: The provider's name of the zone; blank: the site's.
        factor: direct or lifecycle; blank: the provider's usual.
        refresh_s: Seconds between two calls; blank: as the others.
        source: Shown under every figure drawn from it.
        forecast_model: The model whose forecast counts; blank: the provider's own.
    """

    site: Required[str]
    signal: Signal
    provider: Required[str]
    zone: str
    factor: str
    refresh_s: float | None
    config: Mapping[str, Any]
    source: str
    forecast_model: str


class NewGpu(TypedDict, total=False):
    """What plans count with.

    Attributes:
        gpu_type: Name in the engine model, for example A100-80GB.
    """

    node: Required[str]
    index: Required[int]
    uuid: Required[str]
    gpu_type: Required[str]
    memory_gb: Required[float]
    min_mhz: Required[float]
    max_mhz: Required[float]
    tdp_w: Required[float]


class NewGpuHourRate(TypedDict, total=False):
    """What an hour of a GPU costs: bought, leased or rented.

    Attributes:
        gpu_type: As in the inventory of GPUs.
        valid_from: From when it holds.
        valid_to: Until when it holds; empty: until the next one.
        source: Where the figure is from: shown beside what it is used for.
        version: The source's own version or date.
    """

    site: str | None
    gpu_type: Required[str]
    rate_per_gpu_hour: Required[float]
    currency: Required[str]
    valid_from: Required[datetime]
    valid_to: datetime | None
    source: Required[str]
    version: Required[str]


class NewGpuType(TypedDict, total=False):
    """A GPU product beyond those that are shipped, by its data sheet. Plans count with wide margins.

    Attributes:
        name: For example L40S-48GB.
        driver_names: Names by which drivers know it: ["NVIDIA L40S"].
        peak_tflops: Dense, at 16 bit.
        fp8_tflops: Dense, at 8 bit; empty: it has no such units.
        fp4_tflops: Dense, at 4 bit; empty: it has no such units.
        memory_gb: Billions of bytes, as its driver says.
        memory_gb_per_s: Bandwidth of its memory.
        link_gb_per_s: To the other GPUs of its node, both directions together.
        idle_w: With nothing loaded; empty: as the type it is like.
        min_mhz: Lowest SM clock.
        max_mhz: Highest SM clock.
        like: The measured type whose efficiencies it is given until it has a profile of its own.
        source: Where these figures are from.
        assumed: Fields that the source lacks: ["min_mhz"].
    """

    name: Required[str]
    driver_names: Sequence[Any]
    peak_tflops: Required[float]
    fp8_tflops: float | None
    fp4_tflops: float | None
    memory_gb: Required[float]
    memory_gb_per_s: Required[float]
    link_gb_per_s: Required[float]
    tdp_w: Required[float]
    idle_w: float | None
    min_mhz: Required[float]
    max_mhz: Required[float]
    like: Required[str]
    source: Required[str]
    assumed: Sequence[Any]


class NewLoraAdapter(TypedDict, total=False):
    """A fine-tune of a service's model, which clients ask for by its own name. Engines load it when one does.

    Attributes:
        name: The `model` that clients send.
        source: Its weights: a Hugging Face id, or a folder on the nodes that have its engines.
        rank: `r` in its adapter_config.json.
    """

    service: Required[str]
    name: Required[str]
    source: Required[str]
    rank: Required[int]


class NewModel(TypedDict, total=False):
    """What can be served.

    Attributes:
        config: The model's config.json as an object, from which its shape is computed; null: none, and the engine
            model must know the name.
        max_model_len: Longest prompt plus output, in tokens.
        engine: Engine parameters of the engine model.
        tokenizer: The model's tokenizer.json, a file on the gateways' machines; empty: prompts are estimated.
        weights: Folder on the nodes with the weights; empty: the Hugging Face id.
        dtype: Number format that engines compute in; auto: that of the weights.
        engine_arguments: vLLM's arguments, word by word: ["--kv-cache-dtype", "fp8"].
        engine_environment: Variables of engines: {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}.
    """

    name: Required[str]
    hugging_face_id: str
    config: Mapping[str, Any] | None
    max_model_len: Required[int]
    engine: str
    tokenizer: str
    weights: str
    dtype: Dtype
    engine_arguments: Sequence[Any]
    engine_environment: Mapping[str, Any]


class NewNode(TypedDict, total=False):
    """A machine with GPUs and an agent. Its agent is started with the same name.

    Attributes:
        schedulable: Off: epochs place nothing new here.
        gpu_slices: So many engines share each GPU, each with an equal part of its memory and TP 1; all have its
            one clock. 1: an engine has its GPUs to itself. It can be changed while no instance lives on the node.
        slicing: With MPS each gets its part of the threads too; the node's MPS daemon is for you to run.
        power_port: By it plans whose knob servers is power_off switch the server off while it is not needed.
        power_url: Of its BMC's system, https://BMC/redfish/v1/Systems/ID, or of the webhook. Its password or
            secret is in a file: docs/servers.md.
        power_mac: Of the network card that wakes it, for wake-on-LAN, for example 12:34:56:78:9a:bc.
        power_broadcast: To which the packet of wake-on-LAN goes; empty: 255.255.255.255.
        boot_s: Seconds from being switched on until its agent reports, until that is measured; empty: 600.
    """

    cluster: Required[str]
    name: Required[str]
    simulated: bool
    schedulable: bool
    gpu_slices: int
    slicing: Slicing
    power_port: PowerPort
    power_url: str
    power_mac: str
    power_broadcast: str
    boot_s: float | None


class NewOffer(TypedDict, total=False):
    """The service `name` with the model of a card, or a new card of a model that the engine model knows by name; of
    the latter `max_model_len` is needed. At least one objective, in seconds, for `percentile` of 100 requests.
    `sites`: where it may run; none: everywhere.

    Attributes:
        name: The `model` that clients send.
        max_model_len: Longest prompt plus output, in tokens.
        expected_rps: Load to plan for until it is known, in requests/s.
    """

    name: Required[str]
    model: Required[str]
    max_model_len: int | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    percentile: float
    expected_rps: float | None
    expected_prompt_tokens: int | None
    expected_output_tokens: int | None
    sites: Sequence[str]
    policy: Policy


class NewOverride(TypedDict, total=False):
    """`workers` (mode -> instances) for a `pool`; of kind clock `mhz`, or `floor_mhz`: how far down its rule may go;
    `partition` for a `service`; or a `site` to drain.
    """

    kind: Required[OverrideKind]
    pool: int | str
    service: str
    site: str
    instance_uid: UUID | str
    workers: Mapping[str, int]
    mhz: float
    floor_mhz: float
    partition: str
    expires_at: Required[datetime]
    reason: Required[str]


class NewPartition(TypedDict, total=False):
    """A way to cut requests into classes by the lengths of prompt and answer."""

    name: Required[str]
    source: str


class NewPause(TypedDict, total=False):
    """The API's new pause."""

    service: Required[str]
    loop: Required[Loop]
    reason: Required[str]
    expires_at: datetime | None


class NewPool(TypedDict, total=False):
    """Where a service may run: with the first pool at a site it gets one there for each class.

    Attributes:
        warm: Engines kept warm beside those that are wanted: asleep, or loaded, without requests.
    """

    service: Required[str]
    site: Required[str]
    request_class: Required[str]
    warm: int


class NewProfile(TypedDict, total=False):
    """What one instance of a mode does for one class.

    Attributes:
        power_w: Whole instance, at max_rps.
    """

    model_card: Required[str]
    request_class: Required[str]
    gpu_type: Required[str]
    tp: Required[int]
    max_rps: Required[float]
    power_w: Required[float]
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    kind: Required[Source]
    source: Required[str]
    note: str


class NewPue(TypedDict, total=False):
    """Power usage effectiveness; without one the site's own field counts.

    Attributes:
        valid_from: From when it holds.
        valid_to: Until when it holds; empty: until the next one.
        source: Where the figure is from: shown beside what it is used for.
        version: The source's own version or date.
    """

    site: Required[str]
    value: Required[float]
    valid_from: Required[datetime]
    valid_to: datetime | None
    source: Required[str]
    version: Required[str]


class NewReport(TypedDict, total=False):
    """The report to make. docs/reports.md explains `by`, `formats` and `zone`; empty `sites` means all.

    Attributes:
        period: 2026-11, 2026-W45, 2026-11-02, or two dates as 2026-11-01/2026-11-08, the second excluded.
        basis: How the bill shares out what is nobody's; none: no bill.
        matching: How contracts for electricity cover what is used.
        focus_version: Version of FOCUS of these formats; the newest if it is not given. `asked` has it unless it
            is 1.4.
    """

    period: Required[str]
    zone: str
    by: Sequence[str]
    formats: Sequence[str]
    sites: Sequence[str]
    baseline: bool
    basis: NewReportBasis
    matching: Matching
    focus_version: FocusVersion


class NewReportSchedule(TypedDict, total=False):
    """A report that is made by itself when a week or month is over and settled.

    Attributes:
        asked: Fields of a report besides its period.
        recipients: Mail addresses.
    """

    name: Required[str]
    cadence: Required[Cadence]
    asked: Mapping[str, Any]
    recipients: Sequence[Any]
    enabled: bool


class NewRequestClass(TypedDict, total=False):
    """A request class of a partition. Lower bounds are inclusive, upper ones exclusive; empty: no bound.

    Attributes:
        rank: Order by size; spilling goes upwards.
    """

    partition: Required[str]
    name: Required[str]
    rank: Required[int]
    input_min: int
    input_max: int | None
    output_min: int
    output_max: int | None
    ttft_threshold_s: float | None
    tpot_threshold_s: float | None
    e2e_threshold_s: float | None


class NewService(TypedDict, total=False):
    """A model offered to clients under a name, with objectives and a policy.

    Attributes:
        name: The `model` that clients send.
        partition: In force; the carbon epoch's. The policy may name another: greenserve serves all requests as
            one class. For classes of your own set the knob partition=NAME.
        partitions: Those the carbon epoch may choose from.
        expected_rps: Load to plan for until five minutes have been seen, in requests/s.
        expected_prompt_tokens: Mean length of prompts.
        expected_output_tokens: Mean length of answers.
        weight: Its part beside other services where GPUs are scarce: 2 is twice as many as 1.
        min_gpus: It has as many, where it needs them, before others get more than an instance for each class.
            What it does not need, others may use.
        max_gpus: It never has more, not even where GPUs are free. Empty: there is no limit.
        max_loras: LoRA adapters that an engine has loaded at once; for another one the least recently used goes.
        policy: A preset: the policy of a paper, or GreenServe's own.
        knobs: What is set otherwise than in the preset: knobs, and `tuning` by record.
    """

    name: Required[str]
    description: str
    model_card: Required[str]
    partition: Required[str]
    partitions: Required[Sequence[str]]
    expected_rps: float | None
    expected_prompt_tokens: int | None
    expected_output_tokens: int | None
    weight: float
    min_gpus: int
    max_gpus: int | None
    max_loras: int
    policy: Policy
    knobs: Mapping[str, Any]


class NewSilence(TypedDict, total=False):
    """The silence to make. `for_s`: seconds from now, a minute to 30 days; an empty `subject` means all."""

    rule: Required[str]
    subject: str
    for_s: Required[float]
    reason: str


class NewSite(TypedDict, total=False):
    """A data centre: one zone of the grid, one PUE, one currency.

    Attributes:
        label: Name shown to people, for example Ashburn.
        rank: Order on pages.
        grid_zone: The carbon feeds' name of the grid zone, for example DE.
        market: Market that its contracts for electricity must be from, for example AIB; empty: not declared.
        time_zone: IANA name, for example Europe/Berlin.
        latitude: Degrees north of the equator, for its weather, for example 39.04; empty: unknown.
        longitude: Degrees east of Greenwich, west is negative, for example -77.49; empty: unknown.
        pue: Power usage effectiveness; the default is Uptime Institute's mean of 2025.
        power_cap_w: Cap on the site's power in watts; empty: none.
    """

    name: Required[str]
    label: Required[str]
    rank: int
    grid_zone: Required[str]
    market: str
    time_zone: str
    latitude: float | None
    longitude: float | None
    currency: str
    pue: float
    power_cap_w: float | None


class NewSlo(TypedDict, total=False):
    """So many of 100 requests within so many seconds."""

    service: Required[str]
    kind: Required[SloKind]
    objective_s: Required[float]
    percentile: float


class NewStudy(TypedDict, total=False):
    """The study to make; only `runs` is required. An experiment (lab:NAME) brings its own values of the rest, and
    takes only `name` and, where it needs a trace, `traffic`.

    Attributes:
        base: fleet (default), a preset's name, study:ID, or lab:EXPERIMENT.
        scenario: In place of a base: as in a scenario file.
        traffic: kind: keep | past (from, to, service) | generated.
        changes: rate_scale, duration_s, requests, gpus, slo ...
        runs: A list: "freesh {order: fcfs}", or objects of policy, knobs, set, label.
    """

    name: str
    base: str
    scenario: Any
    traffic: Any
    changes: Any
    runs: Any


class NewSubscription(TypedDict, total=False):
    """The API's new subscription."""

    name: Required[str]
    url: Required[str]
    events: Required[Sequence[Events]]
    enabled: bool


class NewTariff(TypedDict, total=False):
    """What a site pays for electricity, in its local time.

    Attributes:
        price_per_kwh: When no window holds, in the currency.
        windows: Time of use: from, to, price_per_kwh, days, months
        demand_per_kw: For each kW of the month's peak quarter of an hour.
        valid_from: From when it holds.
        valid_to: Until when it holds; empty: until the next one.
        source: Where the figure is from: shown beside what it is used for.
        version: The source's own version or date.
    """

    site: Required[str]
    currency: Required[str]
    price_per_kwh: Required[float]
    windows: Sequence[Any]
    demand_per_kw: float
    valid_from: Required[datetime]
    valid_to: datetime | None
    source: Required[str]
    version: Required[str]


class NewTenant(TypedDict, total=False):
    """Who calls, and how much; their keys are under Keys.

    Attributes:
        requests_per_minute: Requests a minute; empty: no limit.
        tokens_per_minute: Tokens a minute, of prompts and answers; empty: no limit.
        concurrent_requests: Requests at a time; empty: no limit.
        shares_prefixes: Engines reuse cached beginnings of prompts among all tenants for which this is set.
    """

    name: Required[str]
    label: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    shares_prefixes: bool


class NewTrial(TypedDict, total=False):
    """The trial to plan; blocks of `block_h` hours, a pair for each of `pairs`, from `begins_at` on. With `other` it
    is one by sites: the two services swap the policies at each turn.
    """

    service: Required[str]
    other: str | None
    policy_a: Required[str]
    knobs_a: Mapping[str, Any]
    policy_b: Required[str]
    knobs_b: Mapping[str, Any]
    block_h: int
    pairs: int
    warm_up_s: int
    begins_at: Required[datetime]
    reason: Required[str]


class NewWeatherFeed(TypedDict, total=False):
    """A provider of a site's weather, for forecasts of its carbon. Without one nobody is asked.

    Attributes:
        provider: open_meteo, or weather_csv for a file.
        refresh_s: Seconds between two calls; blank: an hour.
        source: Whose data it is, shown beside it.
    """

    site: Required[str]
    provider: Required[str]
    refresh_s: float | None
    config: Mapping[str, Any]
    source: str


class NodeChanges(TypedDict, total=False):
    """A machine with GPUs and an agent. Its agent is started with the same name.

    Attributes:
        schedulable: Off: epochs place nothing new here.
        gpu_slices: So many engines share each GPU, each with an equal part of its memory and TP 1; all have its
            one clock. 1: an engine has its GPUs to itself. It can be changed while no instance lives on the node.
        slicing: With MPS each gets its part of the threads too; the node's MPS daemon is for you to run.
        power_port: By it plans whose knob servers is power_off switch the server off while it is not needed.
        power_url: Of its BMC's system, https://BMC/redfish/v1/Systems/ID, or of the webhook. Its password or
            secret is in a file: docs/servers.md.
        power_mac: Of the network card that wakes it, for wake-on-LAN, for example 12:34:56:78:9a:bc.
        power_broadcast: To which the packet of wake-on-LAN goes; empty: 255.255.255.255.
        boot_s: Seconds from being switched on until its agent reports, until that is measured; empty: 600.
    """

    cluster: str
    name: str
    simulated: bool
    schedulable: bool
    gpu_slices: int
    slicing: Slicing
    power_port: PowerPort
    power_url: str
    power_mac: str
    power_broadcast: str
    boot_s: float | None


class NodeChange(NodeChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class NodeOffer(TypedDict, total=False):
    """The API's node offer.

    Attributes:
        token: From `greenserve node token`; good for one machine, once.
        release: The version of GreenServe on the machine.
        request: For a certificate of the node's key, which never leaves it; PKCS #10, in PEM.
    """

    token: Required[str]
    name: Required[str]
    driver: Required[str]
    gpus: Required[Sequence[GpuOffer]]
    release: str
    request: str


class PartitionChanges(TypedDict, total=False):
    """A way to cut requests into classes by the lengths of prompt and answer."""

    name: str
    source: str


class PartitionChange(PartitionChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class PoolChanges(TypedDict, total=False):
    """Where a service may run: with the first pool at a site it gets one there for each class.

    Attributes:
        warm: Engines kept warm beside those that are wanted: asleep, or loaded, without requests.
    """

    service: str
    site: str
    request_class: str
    warm: int


class PoolChange(PoolChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class ProfileChanges(TypedDict, total=False):
    """What one instance of a mode does for one class.

    Attributes:
        power_w: Whole instance, at max_rps.
    """

    model_card: str
    request_class: str
    gpu_type: str
    tp: int
    max_rps: float
    power_w: float
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    kind: Source
    source: str
    note: str


class ProfileChange(ProfileChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class PueChanges(TypedDict, total=False):
    """Power usage effectiveness; without one the site's own field counts.

    Attributes:
        valid_from: From when it holds.
        valid_to: Until when it holds; empty: until the next one.
        source: Where the figure is from: shown beside what it is used for.
        version: The source's own version or date.
    """

    site: str
    value: float
    valid_from: datetime
    valid_to: datetime | None
    source: str
    version: str


class PueChange(PueChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class Rejection(TypedDict, total=False):
    """The API's rejection."""

    note: str


class ReportScheduleChanges(TypedDict, total=False):
    """A report that is made by itself when a week or month is over and settled.

    Attributes:
        asked: Fields of a report besides its period.
        recipients: Mail addresses.
    """

    name: str
    cadence: Cadence
    asked: Mapping[str, Any]
    recipients: Sequence[Any]
    enabled: bool


class ReportScheduleChange(ReportScheduleChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class RequestClassChanges(TypedDict, total=False):
    """A request class of a partition. Lower bounds are inclusive, upper ones exclusive; empty: no bound.

    Attributes:
        rank: Order by size; spilling goes upwards.
    """

    partition: str
    name: str
    rank: int
    input_min: int
    input_max: int | None
    output_min: int
    output_max: int | None
    ttft_threshold_s: float | None
    tpot_threshold_s: float | None
    e2e_threshold_s: float | None


class RequestClassChange(RequestClassChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class ServiceChanges(TypedDict, total=False):
    """A model offered to clients under a name, with objectives and a policy.

    Attributes:
        name: The `model` that clients send.
        partition: In force; the carbon epoch's. The policy may name another: greenserve serves all requests as
            one class. For classes of your own set the knob partition=NAME.
        partitions: Those the carbon epoch may choose from.
        expected_rps: Load to plan for until five minutes have been seen, in requests/s.
        expected_prompt_tokens: Mean length of prompts.
        expected_output_tokens: Mean length of answers.
        weight: Its part beside other services where GPUs are scarce: 2 is twice as many as 1.
        min_gpus: It has as many, where it needs them, before others get more than an instance for each class.
            What it does not need, others may use.
        max_gpus: It never has more, not even where GPUs are free. Empty: there is no limit.
        max_loras: LoRA adapters that an engine has loaded at once; for another one the least recently used goes.
        policy: A preset: the policy of a paper, or GreenServe's own.
        knobs: What is set otherwise than in the preset: knobs, and `tuning` by record.
    """

    name: str
    description: str
    model_card: str
    partition: str
    partitions: Sequence[str]
    expected_rps: float | None
    expected_prompt_tokens: int | None
    expected_output_tokens: int | None
    weight: float
    min_gpus: int
    max_gpus: int | None
    max_loras: int
    policy: Policy
    knobs: Mapping[str, Any]


class ServiceChange(ServiceChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class SiteChanges(TypedDict, total=False):
    """A data centre: one zone of the grid, one PUE, one currency.

    Attributes:
        label: Name shown to people, for example Ashburn.
        rank: Order on pages.
        grid_zone: The carbon feeds' name of the grid zone, for example DE.
        market: Market that its contracts for electricity must be from, for example AIB; empty: not declared.
        time_zone: IANA name, for example Europe/Berlin.
        latitude: Degrees north of the equator, for its weather, for example 39.04; empty: unknown.
        longitude: Degrees east of Greenwich, west is negative, for example -77.49; empty: unknown.
        pue: Power usage effectiveness; the default is Uptime Institute's mean of 2025.
        power_cap_w: Cap on the site's power in watts; empty: none.
    """

    name: str
    label: str
    rank: int
    grid_zone: str
    market: str
    time_zone: str
    latitude: float | None
    longitude: float | None
    currency: str
    pue: float
    power_cap_w: float | None


class SiteChange(SiteChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class SloChanges(TypedDict, total=False):
    """So many of 100 requests within so many seconds."""

    service: str
    kind: SloKind
    objective_s: float
    percentile: float


class SloChange(SloChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class SubscriptionChanges(TypedDict, total=False):
    """The API's subscription changes."""

    name: str
    url: str
    events: Sequence[Events]
    enabled: bool


class SubscriptionChange(SubscriptionChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class Switch(TypedDict, total=False):
    """A switch to preview: what is given of it is done in this order, and taken back. `knobs` go with `policy`."""

    service: Required[str]
    mode: Mode
    policy: str
    knobs: Mapping[str, Any]
    pause: Loop
    resume: Loop
    end_override: int


class TariffChanges(TypedDict, total=False):
    """What a site pays for electricity, in its local time.

    Attributes:
        price_per_kwh: When no window holds, in the currency.
        windows: Time of use: from, to, price_per_kwh, days, months
        demand_per_kw: For each kW of the month's peak quarter of an hour.
        valid_from: From when it holds.
        valid_to: Until when it holds; empty: until the next one.
        source: Where the figure is from: shown beside what it is used for.
        version: The source's own version or date.
    """

    site: str
    currency: str
    price_per_kwh: float
    windows: Sequence[Any]
    demand_per_kw: float
    valid_from: datetime
    valid_to: datetime | None
    source: str
    version: str


class TariffChange(TariffChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class TenantChanges(TypedDict, total=False):
    """Who calls, and how much; their keys are under Keys.

    Attributes:
        requests_per_minute: Requests a minute; empty: no limit.
        tokens_per_minute: Tokens a minute, of prompts and answers; empty: no limit.
        concurrent_requests: Requests at a time; empty: no limit.
        shares_prefixes: Engines reuse cached beginnings of prompts among all tenants for which this is set.
    """

    name: str
    label: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    shares_prefixes: bool


class TenantChange(TenantChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]


class WeatherFeedChanges(TypedDict, total=False):
    """A provider of a site's weather, for forecasts of its carbon. Without one nobody is asked.

    Attributes:
        provider: open_meteo, or weather_csv for a file.
        refresh_s: Seconds between two calls; blank: an hour.
        source: Whose data it is, shown beside it.
    """

    site: str
    provider: str
    refresh_s: float | None
    config: Mapping[str, Any]
    source: str


class WeatherFeedChange(WeatherFeedChanges):
    """Changes of one row, in a list of them: its id, and the etag that was read."""

    id: Required[int]
    etag: Required[str]
