"""Bodies of requests: values of the JSON type that the OpenAPI document names, and no fields that nobody knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

JSON_TYPES: tuple[tuple[type[serializers.Field], tuple[type, ...], str], ...] = (
    (serializers.BooleanField, (bool,), "true or false"),
    (serializers.IntegerField, (int,), "a whole number"),
    (serializers.FloatField, (int, float), "a number"),
    (serializers.DecimalField, (int, float, str), "a number"),
    (serializers.CharField, (str,), "a text"),
    (serializers.ChoiceField, (str,), "a text"),
    (serializers.UUIDField, (str,), "a text"),
    (serializers.DateTimeField, (str,), "a time such as 2026-11-02T08:30:00Z"),
)


class ByType(serializers.Serializer):
    """Refuses a value of another JSON type, which DRF would convert: `"yes"` is no truth, and 5 is no name."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            wrong = {name: words for name, field in self.fields.items() if (words := _misfit(field, data.get(name)))}
            if wrong:
                raise serializers.ValidationError(wrong)
        return super().to_internal_value(data)


class Body(ByType):
    """A body that is no resource. A field that nobody knows is an error: it may be a typo of one that matters."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping) and (strange := [name for name in data if name not in self.fields]):
            known = ", ".join(self.fields)
            raise serializers.ValidationError({strange[0][:80]: f"There is no such field. Remedy: Known are {known}."})
        return super().to_internal_value(data)


def _misfit(field: serializers.Field, value: object) -> str | None:
    if value is None or field.read_only:
        return None  # DRF says whether it may be null
    for kind, types, words in JSON_TYPES:
        if isinstance(field, kind):
            fits = isinstance(value, types) and (bool in types or not isinstance(value, bool))
            return None if fits else f"Give {words}."
    return None
