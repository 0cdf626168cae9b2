"""Everything an operator owns: which fields are set by hand, who may, and what a row is known by.

Forms, imports and REST are all made from this one list, so that they allow the same and say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from django.core.exceptions import FieldDoesNotExist
from django.db.models import ForeignKey, ManyToManyField, Model, Q, QuerySet

from pools import models as pools
from pools.access.rights import Right
from pools.models import Site
from telemetry import models as telemetry


@dataclass(frozen=True, slots=True)
class Group:
    """Fields that are asked for together."""

    title: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Owned:
    """One kind of thing. `lookup`: the fields that a person knows a row by (and an import finds it by).

    Attributes:
        versions: Rows are never changed or deleted: an edit enters another row, which counts from its `valid_from`.
        site: The path to the site whose people may change it; empty: it is of no single site.
        columns: What a list shows.
        once: Fields that forms ask for when a row is made, and that are the loops' from then on.
    """

    kind: str
    model: type[Model]
    right: Right
    title: str
    one: str
    groups: tuple[Group, ...]
    lookup: tuple[str, ...] = ("name",)
    columns: tuple[str, ...] = ()
    site: str = ""
    versions: bool = False
    once: tuple[str, ...] = ()
    help: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(name for group in self.groups for name in group.fields)

    @property
    def many(self) -> tuple[str, ...]:
        """Fields that name several others."""
        return tuple(name for name in self.fields if isinstance(self.field(name), ManyToManyField))

    @property
    def related(self) -> tuple[str, ...]:
        """The fields by which a list reads other tables."""
        return tuple(name for name in self.fields if isinstance(self.field(name), ForeignKey))

    def field(self, name: str) -> Any:
        return self.model._meta.get_field(name)

    def at(self, sites: QuerySet[Site]) -> QuerySet[Any]:
        """Returns the rows that stand at these sites; all of what is of no single site."""
        rows = self.model._default_manager.all()
        if not self.site:
            return rows
        path = self.site.replace(".", "__")
        found = Q(pk__in=sites) if path == "self" else Q(**{f"{path}__in": sites})
        return rows.filter(found | Q(site=None) if path == "site" and self.field("site").null else found)

    def site_of(self, instance: Model) -> Site | None:
        """Returns the site whose people may change it; None: it is of no single site."""
        found: Any = instance
        for part in self.site.split(".") if self.site else ():
            if part != "self":
                found = getattr(found, part, None)
        return found if self.site and isinstance(found, Site) else None

    def has(self, name: str) -> bool:
        try:
            self.field(name)
        except FieldDoesNotExist:
            return False
        return True


def _plain(*fields: str) -> tuple[Group, ...]:
    return (Group("", fields),)


_WHEN = Group("From when, and whose figure it is", ("valid_from", "valid_to", "source", "version"))
_GPU_TYPE = ("link_gb_per_s", "tdp_w", "idle_w", "min_mhz", "max_mhz")
_OPERATE, _FINANCE, _ADMINISTER = Right.OPERATE, Right.FINANCE, Right.ADMINISTER

_ALL = (
    Owned(
        "sites",
        pools.Site,
        _OPERATE,
        "Sites",
        "site",
        (
            Group("What it is called", ("name", "label", "rank")),
            Group("Where it is", ("grid_zone", "market", "time_zone", "latitude", "longitude", "currency")),
            Group("Power", ("pue", "power_cap_w")),
        ),
        columns=("name", "label", "grid_zone", "pue", "power_cap_w"),
        site="self",
        help="A data centre: one zone of the grid, one PUE, one currency.",
    ),
    Owned(
        "clusters",
        pools.Cluster,
        _OPERATE,
        "Clusters",
        "cluster",
        _plain("site", "name"),
        ("site", "name"),
        ("site", "name"),
        "site",
        help="Nodes of one site that are run together.",
    ),
    Owned(
        "nodes",
        pools.Node,
        _OPERATE,
        "Nodes",
        "node",
        (
            *_plain("cluster", "name", "simulated", "schedulable", "gpu_slices", "slicing"),
            Group("How it is switched", ("power_port", "power_url", "power_mac", "power_broadcast", "boot_s")),
        ),
        columns=("name", "cluster", "simulated", "schedulable"),
        site="cluster.site",
        help="A machine with GPUs and an agent. Its agent is started with the same name.",
    ),
    Owned(
        "gpu-types",
        pools.GpuType,
        _OPERATE,
        "GPU types",
        "GPU type",
        (
            Group("Which", ("name", "driver_names")),
            Group(
                "What its data sheet says", ("peak_tflops", "fp8_tflops", "fp4_tflops", "memory_gb", "memory_gb_per_s")
            ),
            Group("How it is connected, and its power and clocks", _GPU_TYPE),
            Group("Until a node with it is profiled", ("like",)),
            Group("Whose figures", ("source", "assumed")),
        ),
        columns=("name", "peak_tflops", "memory_gb", "memory_gb_per_s", "tdp_w", "like", "source"),
        help="A GPU product beyond those that are shipped, by its data sheet. Plans count with wide margins.",
    ),
    Owned(
        "gpus",
        pools.Gpu,
        _OPERATE,
        "GPUs",
        "GPU",
        (
            Group("Which", ("node", "index", "uuid", "gpu_type")),
            Group("What it can", ("memory_gb", "min_mhz", "max_mhz", "tdp_w")),
        ),
        ("node", "index"),
        ("node", "index", "gpu_type", "memory_gb", "tdp_w"),
        "node.cluster.site",
        help="What plans count with.",
    ),
    Owned(
        "models",
        pools.ModelCard,
        _OPERATE,
        "Models",
        "model",
        _plain(
            *("name", "hugging_face_id", "config", "max_model_len", "engine", "tokenizer"),
            *("weights", "dtype", "engine_arguments", "engine_environment"),
        ),
        columns=("name", "hugging_face_id", "max_model_len", "engine"),
        help="What can be served.",
    ),
    Owned(
        "partitions",
        pools.Partition,
        _OPERATE,
        "Partitions",
        "partition",
        _plain("name", "source"),
        columns=("name", "source"),
        help="A way to cut requests into classes by the lengths of prompt and answer.",
    ),
    Owned(
        "classes",
        pools.RequestClass,
        _OPERATE,
        "Request classes",
        "request class",
        (
            Group("Which", ("partition", "name", "rank")),
            Group("Requests that belong to it", ("input_min", "input_max", "output_min", "output_max")),
            Group("Thresholds of the clock loop", ("ttft_threshold_s", "tpot_threshold_s", "e2e_threshold_s")),
        ),
        ("partition", "name"),
        ("partition", "name", "rank", "input_min", "input_max", "output_min", "output_max"),
        help="A request class of a partition. Lower bounds are inclusive, upper ones exclusive; empty: no bound.",
    ),
    Owned(
        "profiles",
        pools.Profile,
        _OPERATE,
        "Profiles",
        "profile",
        (
            Group("Of what", ("model_card", "request_class", "gpu_type", "tp")),
            Group("What one instance does at its top clock", ("max_rps", "power_w", "ttft_s", "tpot_s", "e2e_s")),
            Group("Whose figures", ("kind", "source", "note")),
        ),
        ("model_card", "request_class", "gpu_type", "tp", "source"),
        ("model_card", "request_class", "gpu_type", "tp", "max_rps", "power_w", "tpot_s", "kind"),
        help="What one instance of a mode does for one class.",
    ),
    Owned(
        "services",
        pools.Service,
        _OPERATE,
        "Services",
        "service",
        (
            Group("What clients call", ("name", "description", "model_card")),
            Group("How requests are cut into classes", ("partition", "partitions")),
            Group(
                "Load to plan for until it is known",
                ("expected_rps", "expected_prompt_tokens", "expected_output_tokens"),
            ),
            Group("Its part of the GPUs, beside other services", ("weight", "min_gpus", "max_gpus")),
            Group("Its LoRA adapters", ("max_loras",)),
            Group("What runs it", ("policy", "knobs")),
        ),
        columns=("name", "model_card", "partition", "expected_rps", "policy"),
        once=("partition",),
        help="A model offered to clients under a name, with objectives and a policy.",
    ),
    Owned(
        "slos",
        pools.Slo,
        _OPERATE,
        "SLOs",
        "SLO",
        _plain("service", "kind", "objective_s", "percentile"),
        ("service", "kind"),
        ("service", "kind", "objective_s", "percentile"),
        help="So many of 100 requests within so many seconds.",
    ),
    Owned(
        "adapters",
        pools.Adapter,
        _OPERATE,
        "LoRA adapters",
        "LoRA adapter",
        _plain("service", "name", "source", "rank"),
        columns=("name", "service", "source", "rank"),
        help="A fine-tune of a service's model, which clients ask for by its own name. Engines load it when one does.",
    ),
    Owned(
        "pools",
        pools.Pool,
        _OPERATE,
        "Pools",
        "pool",
        _plain("service", "site", "request_class", "warm"),
        ("service", "site", "request_class"),
        ("service", "site", "request_class", "gpu_budget", "workers", "warm"),
        "site",
        help="Where a service may run: with the first pool at a site it gets one there for each class.",
    ),
    Owned(
        "tenants",
        pools.Tenant,
        _ADMINISTER,
        "Tenants",
        "tenant",
        (
            Group("Who", ("name", "label")),
            Group("What its keys may send together", pools.LIMITS),
            Group("What engines keep of its prompts", ("shares_prefixes",)),
        ),
        columns=("name", "label", *pools.LIMITS, "shares_prefixes"),
        help="Who calls, and how much; their keys are under Keys.",
    ),
    Owned(
        "feeds",
        telemetry.CarbonFeed,
        _OPERATE,
        "Carbon and price feeds",
        "feed",
        (
            Group("What", ("site", "signal")),
            Group("Whence", ("provider", "zone", "factor", "refresh_s", "config", "source")),
            Group("Whose forecast counts", ("forecast_model",)),
        ),
        ("site", "signal"),
        ("site", "signal", "provider", "zone", "last_ok_at"),
        "site",
        help="A source of carbon intensity or of prices. Keys of providers are set in the environment, never here.",
    ),
    Owned(
        "weather-feeds",
        telemetry.WeatherFeed,
        _OPERATE,
        "Weather feeds",
        "weather feed",
        (Group("Of which site", ("site",)), Group("Whence", ("provider", "refresh_s", "config", "source"))),
        ("site",),
        ("site", "provider", "last_ok_at"),
        "site",
        help="A provider of a site's weather, for forecasts of its carbon. Without one nobody is asked.",
    ),
    Owned(
        "tariffs",
        telemetry.Tariff,
        _FINANCE,
        "Tariffs",
        "tariff",
        (
            Group("Of which site", ("site", "currency")),
            Group("Price", ("price_per_kwh", "windows", "demand_per_kw")),
            _WHEN,
        ),
        ("site", "valid_from", "version"),
        ("site", "price_per_kwh", "currency", "valid_from", "valid_to", "source"),
        "site",
        versions=True,
        help="What a site pays for electricity, in its local time.",
    ),
    Owned(
        "gpu-rates",
        telemetry.GpuRate,
        _FINANCE,
        "GPU-hour rates",
        "GPU-hour rate",
        (Group("Of what", ("site", "gpu_type")), Group("Price", ("rate_per_gpu_hour", "currency")), _WHEN),
        ("site", "gpu_type", "currency", "valid_from", "version"),
        ("site", "gpu_type", "rate_per_gpu_hour", "currency", "valid_from", "source"),
        "site",
        versions=True,
        help="What an hour of a GPU costs: bought, leased or rented.",
    ),
    Owned(
        "pues",
        telemetry.Pue,
        _FINANCE,
        "PUE over time",
        "PUE",
        (Group("", ("site", "value")), _WHEN),
        ("site", "valid_from", "version"),
        ("site", "value", "valid_from", "valid_to", "source"),
        "site",
        versions=True,
        help="Power usage effectiveness; without one the site's own field counts.",
    ),
    Owned(
        "embodied-factors",
        telemetry.EmbodiedFactor,
        _FINANCE,
        "Embodied emissions",
        "embodied factor",
        (Group("", ("gpu_type", "gpu_kg", "server_kg", "gpus_per_server", "lifespan_years")), _WHEN),
        ("gpu_type", "valid_from", "version"),
        ("gpu_type", "gpu_kg", "server_kg", "lifespan_years", "valid_from", "source"),
        versions=True,
        help="Emissions of making a GPU and its share of the server.",
    ),
    Owned(
        "instruments",
        telemetry.Instrument,
        _FINANCE,
        "Contracts for electricity",
        "contract",
        (
            Group("What", ("site", "kind", "factor_g_per_kwh", "mix")),
            Group("How much, and in which hours", ("volume_kwh", "generation", "profile")),
            Group("When, and by which paper", ("valid_from", "valid_to", "source")),
            Group("Quality (Scope 2 Guidance)", ("bundled", "vintage_year", "market", "cancellation")),
        ),
        ("site", "kind", "valid_from", "source"),
        ("site", "kind", "factor_g_per_kwh", "volume_kwh", "valid_from", "valid_to"),
        "site",
        versions=True,
        help="What market-based emissions rest on (GHG Protocol, Scope 2).",
    ),
    Owned(
        "instrument-hours",
        telemetry.InstrumentHour,
        _FINANCE,
        "Hours of metered contracts",
        "contract's hour",
        _plain("instrument", "start_at", "energy_kwh", "source"),
        ("instrument", "start_at"),
        ("instrument", "start_at", "energy_kwh", "source"),
        "instrument.site",
        versions=True,
        help="What a contract whose generation is metered generated in an hour: what hourly matching goes by.",
    ),
    Owned(
        "budgets",
        telemetry.Budget,
        _FINANCE,
        "Budgets of tenants",
        "budget",
        (
            Group("Of a month", ("tenant", "amount", "currency", "carbon_kg", "energy_kwh", "tokens")),
            Group("When it is spent", ("refuses",)),
        ),
        ("tenant",),
        ("tenant", "amount", "currency", "carbon_kg", "energy_kwh", "tokens", "refuses"),
        help="What a tenant may use, emit and cost in a month. Its page says how much is used. Gateways refuse "
        "its requests once it is spent, where that is set.",
    ),
    Owned(
        "report-schedules",
        telemetry.ReportSchedule,
        _FINANCE,
        "Report schedules",
        "report schedule",
        _plain("name", "cadence", "asked", "recipients", "enabled"),
        columns=("name", "cadence", "recipients", "enabled", "last_period"),
        help="A report that is made by itself when a week or month is over and settled.",
    ),
)

OWNED: Mapping[str, Owned] = MappingProxyType({owned.kind: owned for owned in _ALL})
_BY_MODEL = {owned.model: owned for owned in _ALL}


def of(instance: Model | type[Model]) -> Owned:
    """Raises KeyError: no operator owns rows of this model."""
    return _BY_MODEL[instance if isinstance(instance, type) else type(instance)]
