"""The public shape of what an operator owns, made from the list of it (scheduler.operations.configure.registry)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Set
from dataclasses import asdict
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import quote

import django_filters
from django.db import models
from django.db.models import Model, QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from core.algorithms.fleet.sharing import Shortage
from core.engine.model_shape import shape_of_key
from core.policy.setting_texts import documented
from pools.model_files import shape_figures
from pools.models import ModelCard, Node, Service
from scheduler import sleepers
from scheduler.control import shortages
from scheduler.operations.configure.registry import Owned, of
from telemetry.forecasts import forecast_record
from telemetry.models import CarbonFeed, ForecastScore
from telemetry.selectors import weather_status

from .bodies import ByType
from .filters import filterset
from .references import KeyField, key_paths, key_relations
from .representation import etag


class NumberField(serializers.FloatField):
    """A number that JSON has: neither NaN nor infinite, which databases would take."""

    def to_internal_value(self, data: object) -> float:
        found: float = super().to_internal_value(data)
        if isinstance(data, bool) or not math.isfinite(found):
            self.fail("invalid")
        return found


class ChoiceField(serializers.ChoiceField):
    """One of some words, which the error names."""

    def to_internal_value(self, data: object) -> Any:
        try:
            return super().to_internal_value(data)
        except serializers.ValidationError:
            known = ", ".join(str(key) for key in self.choices)
            raise serializers.ValidationError(f"'{str(data)[:40]}' is none of: {known}") from None


@extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})
class GpuCounts(serializers.Field):
    """GPU type -> how many."""

    def to_representation(self, node: Node) -> dict[str, int]:
        counts: dict[str, int] = {}
        for gpu in node.gpus.all():
            counts[gpu.gpu_type] = counts.get(gpu.gpu_type, 0) + 1
        return counts


class WeatherUse(serializers.Serializer):
    """The weather of a feed's site."""

    provider = serializers.CharField(help_text="Where it comes from.")
    used = serializers.BooleanField(help_text="The forecast that counts reads it (trees with weather).")
    last_ok_at = serializers.DateTimeField(allow_null=True, help_text="When it came last; null: never.")
    last_error = serializers.CharField(help_text="What went wrong the last time; empty: nothing.")

    def get_attribute(self, instance: CarbonFeed) -> weather_status.WeatherStatus | None:
        return weather_status.status(instance)


def _counts() -> serializers.Field:
    return serializers.DictField(child=serializers.IntegerField(), read_only=True)


def _text(source: str) -> serializers.Field:
    return serializers.CharField(source=source, read_only=True)


@extend_schema_field(
    {
        "type": ["object", "null"],
        "properties": {
            "key": {"type": "string", "description": "By which the engine model knows it."},
            "parameters": {"type": "number"},
            "active_parameters": {"type": "number", "description": "That a token uses."},
            "weight_bytes": {"type": "number"},
            "kv_bytes_per_token": {"type": "number"},
            "layers": {"type": "integer"},
            "experts": {"type": "integer", "description": "0: none."},
            "experts_per_token": {"type": "integer"},
            "window_tokens": {"type": "integer", "description": "How far windowed layers look back; 0: none does."},
            "window_layers": {"type": "integer"},
            "weight_bits": {"type": "number", "description": "Mean of all weights."},
            "kv_bits": {"type": "number"},
            "compute_bits": {"type": "integer", "description": "What matrices are multiplied in."},
        },
    }
)
class Shape(serializers.Field):
    """Shows what follows from a model's config; null without one."""

    def to_representation(self, card: ModelCard) -> dict[str, Any] | None:
        return asdict(shape_figures.figures(shape_of_key(card.shape))) if card.shape else None


class AsleepSince(serializers.DateTimeField):
    """Shows since when a service sleeps."""

    def get_attribute(self, instance: Service) -> datetime | None:
        return sleepers.since(instance)


class ShortageSerializer(serializers.Serializer):
    """GPUs that a service's load needs and that it does not get, and why."""

    gpus_wanted = serializers.IntegerField(source="wanted", help_text="GPUs that its load needs.")
    gpus_given = serializers.IntegerField(source="got", help_text="GPUs that are its.")
    unserved_rps = serializers.FloatField(source="rps", help_text="Requests a second that no instance is to carry.")
    reason = serializers.ChoiceField(
        (
            ("ceiling", "It has as many as its max_gpus allows."),
            ("others", "Other services have those that it could run on."),
            ("none_fit", "There is no more room for an instance of it."),
        )
    )
    max_gpus = serializers.IntegerField(allow_null=True, help_text="Its ceiling; null: that is not the reason.")
    gpus_of_others = serializers.DictField(
        source="others",
        child=serializers.IntegerField(),
        help_text="By service, GPUs that it could run on; empty where others are not the reason.",
    )

    def get_attribute(self, instance: Service) -> Shortage | None:
        return shortages.shown(instance)


_ASKED = ("last_tried_at", "last_ok_at", "last_error", "last_error_at", "failures")


class ForecastScoreSerializer(serializers.ModelSerializer):
    """Shows how a model did in the newest back-test of a feed, in the feed's unit: g/kWh, or currency a kWh."""

    mape = serializers.FloatField(allow_null=True, help_text="Mean error of the median, as a share of the truth.")
    coverage = serializers.FloatField(
        allow_null=True, help_text="Share of the steps between the quantiles 0.1 and 0.9; null: not known."
    )
    regret = serializers.FloatField(
        allow_null=True,
        help_text="What a kWh that waits for the lowest quarter of the steps ahead emits (or costs) by the forecast, "
        "beyond what it would by the truth; null: not known.",
    )

    class Meta:
        model = ForecastScore
        fields = (
            *("model", "chosen", "scored_at", "step_s", "steps", "origins", "samples"),
            *("quantile", "pinball", "mape", "coverage", "regret"),
        )


@extend_schema_field(ForecastScoreSerializer(many=True))
class ForecastScores(serializers.Field):
    """Shows the newest back-test of a feed's forecasts, least loss first."""

    def to_representation(self, feed: CarbonFeed) -> Any:
        return ForecastScoreSerializer(forecast_record.newest_of(feed), many=True).data


# What is shown beside the fields that are set by hand.
MORE: Mapping[str, Mapping[str, Any]] = {
    "nodes": {"site": lambda: _text("cluster.site.name"), "gpus": lambda: GpuCounts(source="*", read_only=True)},
    "services": {
        "asleep_since": lambda: AsleepSince(
            read_only=True, allow_null=True, help_text="null: it is awake, or its policy has it never sleep."
        ),
        "short": lambda: ShortageSerializer(
            read_only=True, allow_null=True, help_text="What GPUs it lacks; null: none, or it is alone."
        ),
    },
    "models": {"shape": lambda: Shape(source="*", read_only=True)},
    "gpus": {"site": lambda: _text("node.cluster.site.name")},
    "pools": {"partition": lambda: _text("request_class.partition.name"), "gpu_budget": _counts, "workers": _counts},
    "feeds": {
        **dict.fromkeys(_ASKED),
        "weather": lambda: WeatherUse(
            read_only=True, allow_null=True, help_text="Of its site, for its forecasts; null: no weather feed."
        ),
        "forecast_scores": lambda: ForecastScores(source="*", read_only=True),
    },
    "weather-feeds": dict.fromkeys(_ASKED),
    "report-schedules": {"last_period": None, "last_error": None},
    **{
        kind: {"entered_at": None}
        for kind in ("tariffs", "gpu-rates", "pues", "embodied-factors", "instruments", "instrument-hours")
    },
}
# Words of fields that say more than their help in forms, where a table stands beside.
_KNOBS = "\n".join(f"- `{'tuning.' if '.' in name else ''}{name}`: {words}" for name, words in documented().items())
HELP = {
    "models": {
        "config": "The model's config.json as an object, from which its shape is computed; null: none, and the engine "
        "model must know the name."
    },
    "services": {"knobs": f"What is set otherwise than in the preset: knobs, and `tuning` by record.\n{_KNOBS}"},
}
RELATED = {"nodes": ("gpus",)}  # rows that point here, and that lists show


class OwnedSerializer(ByType, serializers.ModelSerializer):
    """Fields as in the forms, and `etag`. `settings`: those that people set, by which changes are refused."""

    settings: ClassVar[Set[str]]

    serializer_related_field = KeyField
    serializer_choice_field = ChoiceField
    serializer_field_mapping = {**serializers.ModelSerializer.serializer_field_mapping, models.FloatField: NumberField}
    url = serializers.SerializerMethodField(help_text="Where it stands.")
    etag = serializers.SerializerMethodField(help_text="To be sent in If-Match with a change.")

    def get_url(self, row: Model) -> str:
        return address(row)

    def get_etag(self, row: Model) -> str:
        return ""  # of the others, once they are all there

    def to_representation(self, instance: Model) -> dict[str, Any]:
        found: dict[str, Any] = super().to_representation(instance)
        configured = {name: value for name, value in found.items() if name in self.settings}
        others = {name: value for name, value in found.items() if name not in (*self.settings, "etag")}
        found["etag"] = etag(configured, others)
        return found


def address(row: Model) -> str:
    return f"/api/v1/{of(row).kind}/{url_key(row)}/"


def url_key(row: Model) -> str:
    """Returns the row's name where it has one that a path can contain, else `~` and the id."""
    name = str(getattr(row, "name", "")) if of(row).lookup == ("name",) else ""
    plain = name and "/" not in name and not name.startswith(("~", "."))
    return quote(name, safe="") if plain and name not in RESERVED else f"~{row.pk}"


RESERVED = {"validate"}


def serializer_of(owned: Owned) -> type[OwnedSerializer]:
    more = MORE.get(owned.kind, {})
    plain = tuple(name for name, make in more.items() if make is None)
    fields = ("id", "url", *owned.fields, *more, "etag")
    meta = type(
        "Meta",
        (),
        {
            "model": owned.model,
            "fields": fields,
            "read_only_fields": plain,
            "extra_kwargs": {field: {"help_text": words} for field, words in HELP.get(owned.kind, {}).items()},
            "validators": [],
            "ref_name": None,
        },
    )
    made = {name: make() for name, make in more.items() if make is not None}
    own = {"__doc__": owned.help, "settings": {"id", *owned.fields} - set(owned.once), "Meta": meta}
    return type(f"{component(owned)}Serializer", (OwnedSerializer,), {**made, **own})


def component(owned: Owned) -> str:
    """Returns its name in the OpenAPI document, of letters and digits alone: `contract's hour` is ContractHour."""
    words = re.findall(r"[a-z0-9]+", owned.one.lower().replace("'s", ""))
    return "".join(word.capitalize() for word in words)


def rows_of(owned: Owned) -> QuerySet[Any]:
    """With all that a list shows of other tables: the same number of queries however many rows there are."""
    paths: list[str] = []
    for name in owned.related:
        paths += [name, *(f"{name}__{path}" for path in key_relations(owned.field(name).related_model))]
    if owned.kind in ("nodes", "gpus"):
        paths.append(owned.site.replace(".", "__"))
    found = owned.model._default_manager.select_related(*paths) if paths else owned.model._default_manager.all()
    if owned.kind == "services":
        found = shortages.with_shortages(sleepers.with_states(found))
    elif owned.kind == "feeds":
        found = forecast_record.with_newest(found.select_related("site__weather_feed"))
    return found.prefetch_related(*owned.many, *RELATED.get(owned.kind, ())).order_by()


def filters_of(owned: Owned) -> type[django_filters.FilterSet]:
    """Makes filters for each field with a short value; a relation is filtered by the last part of its key."""
    columns: dict[str, str] = {}
    for name in owned.fields:
        field = owned.field(name)
        if isinstance(field, models.ForeignKey):
            columns[name] = f"{name}__{key_paths(field.related_model)[-1]}"
        elif isinstance(field, models.CharField | models.BooleanField | models.IntegerField):
            columns[name] = name
    path = site_path(owned)
    if path and path != "pk":
        columns.setdefault("site", f"{path}__name")
    if owned.versions and owned.has("valid_from"):
        columns |= {"valid_after": "valid_from__gt", "valid_before": "valid_from__lt"}
    return filterset(owned.model, **columns)


def site_path(owned: Owned) -> str | None:
    """Returns the lookup from a row to its site in a query."""
    if not owned.site:
        return None
    return "pk" if owned.site == "self" else owned.site.replace(".", "__")


def ordering_of(owned: Owned) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the default order, and the fields that may be ordered by: those that are never empty."""
    allowed = [
        name
        for name in owned.fields
        if not owned.field(name).null
        and isinstance(
            owned.field(name), models.CharField | models.IntegerField | models.FloatField | models.DateTimeField
        )
    ]
    usual = ("name", "id") if owned.lookup == ("name",) else ("id",)
    return usual, tuple(dict.fromkeys([*allowed, "id"]))
