"""References between resources, by the names that people know: `ashburn`, or `ashburn/main` for a cluster."""

from __future__ import annotations

from typing import Any

from django.db.models import ForeignKey, Model
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

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
        rows = self.get_queryset()
        if request := self.context.get("request"):
            rows = rows.filter(pk__in=visibility.owned(request.user, owned).values("pk"))
        found: Model | None = rows.filter(**dict(zip(paths, parts, strict=True))).first()
        if found is None:
            self.fail("missing", one=owned.one, given=data[:80], kind=owned.kind)
        assert found is not None
        return found

    def use_pk_only_optimization(self) -> bool:
        return False

    def get_choices(self, cutoff: int | None = None) -> dict[str, str]:
        return {}  # only forms of HTML ask, and they would read the whole table


def of_key(key: str) -> dict[str, Any]:
    """Returns what finds a row that is named by its name, or by `~` and its id, in an address."""
    if key.startswith("~") and key[1:].isascii() and key[1:].isdigit() and len(key) < 20:
        return {"pk": int(key[1:])}
    return {"name": key}
