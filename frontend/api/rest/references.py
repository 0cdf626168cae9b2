"""References between resources, by the names that people know: `ashburn`, or `ashburn/main` for a cluster."""

from __future__ import annotations

from typing import Any

from django.db.models import ForeignKey, Model, QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from pools.models import Pool
from scheduler.operations import visibility
from scheduler.operations.configure import registry


def key_paths(model: type[Model]) -> list[str]:
    """Returns the columns that identify a row of this model, across its relations: `["site__name", "name"]`."""
    found: list[str] = []
    for name in registry.of(model).lookup:
        field = model._meta.get_field(name)
        if isinstance(field, ForeignKey):
            found += [f"{name}__{path}" for path in key_paths(field.related_model)]
        else:
            found.append(name)
    return found


def key_relations(model: type[Model]) -> list[str]:
    """What must be read along with a row so that its key can be written."""
    return sorted({path.rpartition("__")[0] for path in key_paths(model) if "__" in path})


def named(source: str) -> serializers.CharField:
    """Returns a field that shows another row by its name; null where there is none."""
    return serializers.CharField(source=source, default=None, allow_null=True, read_only=True)


def key_of(row: Model) -> str:
    parts = []
    for path in key_paths(type(row)):
        found: Any = row
        for step in path.split("__"):
            found = getattr(found, step)
        parts.append(str(found))
    return "/".join(parts)


@extend_schema_field(OpenApiTypes.STR)
class KeyField(serializers.RelatedField):
    """A related row by its key; of another's site there is none, where the serializer's context has the request."""

    default_error_messages = {
        "missing": "There is no {one} '{given}'. Remedy: Make it first, or give one that is listed under {kind}.",
        "shape": "Give the {one} by its key, {shape}.",
    }

    def to_representation(self, value: Model) -> str:
        return key_of(value)

    def to_internal_value(self, data: Any) -> Model:
        model = self.get_queryset().model
        owned, paths = registry.of(model), key_paths(model)
        parts = data.split("/", len(paths) - 1) if isinstance(data, str) else []
        if len(parts) != len(paths) or "\0" in data:
            self.fail("shape", one=owned.one, shape="/".join(path.rpartition("__")[0] or path for path in paths))
        found: Model | None = self.seen().filter(**dict(zip(paths, parts, strict=True))).first()
        if found is None:
            self.fail("missing", one=owned.one, given=data[:80], kind=owned.kind)
        assert found is not None
        return found

    def seen(self) -> QuerySet[Any]:
        rows: QuerySet[Any] = self.get_queryset()
        if request := self.context.get("request"):
            rows = rows.filter(pk__in=visibility.owned(request.user, registry.of(rows.model)).values("pk"))
        return rows

    def use_pk_only_optimization(self) -> bool:
        return False

    def get_choices(self, cutoff: int | None = None) -> dict[str, str]:
        return {}  # only forms of HTML ask, and they would read the whole table


@extend_schema_field(OpenApiTypes.STR)
class PoolName(serializers.Field):
    """The key of the pool that a row points to, such as `llama3-70b/ashburn/short-long/S`."""

    def __init__(self) -> None:
        super().__init__(source="pool", default=None, allow_null=True, read_only=True)

    def to_representation(self, value: Model) -> str:
        return key_of(value)


def pool_relations() -> list[str]:
    """What must be read along with rows that show a PoolName."""
    return ["pool", *(f"pool__{path}" for path in key_relations(Pool))]


@extend_schema_field({"type": ["integer", "string"], "minimum": 1})
class PoolField(KeyField):
    """A pool by its id, or by its key."""

    def to_internal_value(self, data: Any) -> Model:
        if not isinstance(data, int) or isinstance(data, bool):
            return super().to_internal_value(data)
        found: Model | None = self.seen().filter(pk=data).first() if 0 < data < 1 << 63 else None
        if found is None:
            self.fail("missing", one="pool", given=str(data)[:40], kind="pools")
        assert found is not None
        return found


def of_key(key: str) -> dict[str, Any]:
    """Returns what finds a row that is named by its name, or by `~` and its id, in an address."""
    if key.startswith("~") and key[1:].isascii() and key[1:].isdigit() and len(key) < 20:
        return {"pk": int(key[1:])}
    return {"name": key}
