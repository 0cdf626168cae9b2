"""Lists what a fleet's file may contain: the kinds of REST, their fields, and what a row is known by.

The command runs far from the database, so this list stands beside scheduler.operations.configure.registry; a test holds
both, and the types of REST's serializers, against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class FieldType(Enum):
    """The type of a field's value in REST, and what an error asks for."""

    TEXT = "a text"
    NUMBER = "a number"
    WHOLE = "a whole number"
    DECIMAL = "a number of at most 28 digits"
    FLAG = "true or false"
    TIME = "a time with its zone, such as 2026-11-02T08:30:00Z"
    OBJECT = "fields with values"
    LIST = "a list"
    NAME = "the name of another row"
    NAMES = "a list of names of other rows"


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a kind.

    Attributes:
        of: The kind whose row it names, for NAME and NAMES.
        required: A new row needs it.
        nullable: It may be null, which means unknown or none.
        choices: The only texts; empty: any.
    """

    name: str
    type: FieldType
    of: str = ""
    required: bool = False
    nullable: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of row.

    Attributes:
        one: What people call one.
        lookup: The fields that a row is known by.
        versions: A change enters another row, and none is deleted. Of rows with one key, the last one counts.
        once: Fields that only a new row takes; then they are the loops'.
        comes_with: A new row brings rows that are alike in these fields; empty: it comes alone.
        always_in: A field that lists names, with the field whose name is always among them.
    """

    name: str
    one: str
    lookup: tuple[str, ...]
    fields: tuple[FieldSpec, ...]
    versions: bool = False
    once: tuple[str, ...] = ()
    comes_with: tuple[str, ...] = ()
    always_in: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @property
    def references(self) -> tuple[FieldSpec, ...]:
        """The fields that name rows of other kinds."""
        return tuple(field for field in self.fields if field.of)

    def field(self, name: str) -> FieldSpec:
        return next(field for field in self.fields if field.name == name)


def _fields(text: str) -> tuple[FieldSpec, ...]:
    """Reads `name:type`, with `!` for what a new row needs and `?` for what may be null."""
    return tuple(_field(word) for word in text.split())


def _field(word: str) -> FieldSpec:
    name, _, rest = word.partition(":")
    required, nullable = rest.endswith("!"), rest.endswith("?")
    type_name, _, more = rest.rstrip("!?").partition("=")
    found = FieldType[type_name.upper()]
    refers = found in (FieldType.NAME, FieldType.NAMES)
    choices = () if refers or not more else tuple(more.split("|"))
    return FieldSpec(name, found, more if refers else "", required, nullable, choices)


_WHEN = " valid_from:time! valid_to:time? source:text! version:text!"

_ALL = (
    Kind(
        "sites",
        "site",
        ("name",),
        _fields(
            "name:text! label:text! rank:whole grid_zone:text! market:text time_zone:text currency:text pue:number"
            " power_cap_w:number? latitude:number? longitude:number?"
        ),
    ),
    Kind("clusters", "cluster", ("site", "name"), _fields("site:name=sites! name:text!")),
    Kind(
        "nodes",
        "node",
        ("name",),
        _fields(
            "cluster:name=clusters! name:text! simulated:flag schedulable:flag gpu_slices:whole slicing:text=memory|mps"
            " power_port:text=none|redfish|wake_on_lan|webhook|simulated power_url:text power_mac:text"
            " power_broadcast:text boot_s:number?"
        ),
    ),
    Kind(
        "gpu-types",
        "GPU type",
        ("name",),
        _fields(
            "name:text! driver_names:list peak_tflops:number! fp8_tflops:number? fp4_tflops:number?"
            " memory_gb:number! memory_gb_per_s:number! link_gb_per_s:number! tdp_w:number! idle_w:number?"
            " min_mhz:number! max_mhz:number! like:text! source:text! assumed:list"
        ),
    ),
    Kind(
        "gpus",
        "GPU",
        ("node", "index"),
        _fields(
            "node:name=nodes! index:whole! uuid:text! gpu_type:text! memory_gb:number! min_mhz:number!"
            " max_mhz:number! tdp_w:number!"
        ),
    ),
    Kind(
        "models",
        "model",
        ("name",),
        _fields(
            "name:text! hugging_face_id:text config:object? max_model_len:whole! engine:text tokenizer:text"
            " weights:text dtype:text=auto|bfloat16|float16|float32 engine_arguments:list engine_environment:object"
        ),
    ),
    Kind("partitions", "partition", ("name",), _fields("name:text! source:text")),
    Kind(
        "classes",
        "request class",
        ("partition", "name"),
        _fields(
            "partition:name=partitions! name:text! rank:whole! input_min:whole input_max:whole? output_min:whole"
            " output_max:whole? ttft_threshold_s:number? tpot_threshold_s:number? e2e_threshold_s:number?"
        ),
    ),
    Kind(
        "profiles",
        "profile",
        ("model_card", "request_class", "gpu_type", "tp", "source"),
        _fields(
            "model_card:name=models! request_class:name=classes! gpu_type:text! tp:whole! max_rps:number!"
            " power_w:number! ttft_s:number? tpot_s:number? e2e_s:number? kind:text=measured|published|modelled!"
            " source:text! note:text"
        ),
    ),
    Kind(
        "services",
        "service",
        ("name",),
        _fields(
            "name:text! description:text model_card:name=models! partition:name=partitions!"
            " partitions:names=partitions! expected_rps:number? expected_prompt_tokens:whole?"
            " expected_output_tokens:whole? weight:number min_gpus:whole max_gpus:whole? max_loras:whole policy:text"
            " knobs:object"
        ),
        once=("partition",),
        always_in=(("partitions", "partition"),),
    ),
    Kind(
        "slos",
        "SLO",
        ("service", "kind"),
        _fields("service:name=services! kind:text=ttft|tpot|e2e! objective_s:number! percentile:number"),
    ),
    Kind(
        "adapters",
        "LoRA adapter",
        ("name",),
        _fields("service:name=services! name:text! source:text! rank:whole!"),
    ),
    Kind(
        "pools",
        "pool",
        ("service", "site", "request_class"),
        _fields("service:name=services! site:name=sites! request_class:name=classes! warm:whole"),
        comes_with=("service", "site"),
    ),
    Kind(
        "tenants",
        "tenant",
        ("name",),
        _fields(
            "name:text! label:text requests_per_minute:whole? tokens_per_minute:whole? concurrent_requests:whole?"
            " shares_prefixes:flag"
        ),
    ),
    Kind(
        "feeds",
        "feed",
        ("site", "signal"),
        _fields(
            "site:name=sites! signal:text=average|marginal|price provider:text! zone:text factor:text"
            " refresh_s:number? config:object source:text forecast_model:text"
        ),
    ),
    Kind(
        "weather-feeds",
        "weather feed",
        ("site",),
        _fields("site:name=sites! provider:text! refresh_s:number? config:object source:text"),
    ),
    Kind(
        "tariffs",
        "tariff",
        ("site", "valid_from", "version"),
        _fields("site:name=sites! currency:text! price_per_kwh:number! windows:list demand_per_kw:number" + _WHEN),
        versions=True,
    ),
    Kind(
        "gpu-rates",
        "GPU-hour rate",
        ("site", "gpu_type", "currency", "valid_from", "version"),
        _fields("site:name=sites? gpu_type:text! rate_per_gpu_hour:number! currency:text!" + _WHEN),
        versions=True,
    ),
    Kind(
        "pues",
        "PUE",
        ("site", "valid_from", "version"),
        _fields("site:name=sites! value:number!" + _WHEN),
        versions=True,
    ),
    Kind(
        "embodied-factors",
        "embodied factor",
        ("gpu_type", "valid_from", "version"),
        _fields("gpu_type:text gpu_kg:number! server_kg:number gpus_per_server:whole lifespan_years:number!" + _WHEN),
        versions=True,
    ),
    Kind(
        "instruments",
        "contract",
        ("site", "kind", "valid_from", "source"),
        _fields(
            "site:name=sites! kind:text=ppa|certificate|supplier|residual! factor_g_per_kwh:decimal! mix:object"
            " volume_kwh:decimal? generation:text=even|profile|metered profile:list valid_from:time! valid_to:time!"
            " source:text! bundled:flag? vintage_year:whole? market:text cancellation:text"
        ),
        versions=True,
    ),
    Kind(
        "instrument-hours",
        "contract's hour",
        ("instrument", "start_at"),
        _fields("instrument:name=instruments! start_at:time! energy_kwh:decimal? source:text!"),
        versions=True,
    ),
    Kind(
        "budgets",
        "budget",
        ("tenant",),
        _fields(
            "tenant:name=tenants! amount:decimal? currency:text carbon_kg:decimal? energy_kwh:decimal? tokens:whole?"
            " refuses:flag"
        ),
    ),
    Kind(
        "report-schedules",
        "report schedule",
        ("name",),
        _fields("name:text! cadence:text=weekly|monthly! asked:object recipients:list enabled:flag"),
    ),
)

# In the order in which rows can be made: a kind stands after those that its rows name.
KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _ALL})


def counted(name: str, count: int) -> str:
    """Returns a number of rows of a kind in words: `1 site`, `3 sites`."""
    return f"{count} {KINDS[name].one if count == 1 else name}"


def leaves(kind: Kind) -> tuple[FieldSpec, ...]:
    """Returns the fields that a key consists of, those of other kinds' keys in their place."""
    found: list[FieldSpec] = []
    for name in kind.lookup:
        field = kind.field(name)
        found += leaves(KINDS[field.of]) if field.of else [field]
    return tuple(found)


def naming(kind: str) -> tuple[Kind, ...]:
    """Returns the kinds whose rows name rows of this one."""
    return tuple(other for other in KINDS.values() if any(field.of == kind for field in other.references))
