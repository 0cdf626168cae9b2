"""Filters of lists, declared by each: the name of a query parameter and the column that it is held against."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any

import django_filters
from django import forms
from django.db import models
from django.db.models import QuerySet
from django.db.models.constants import LOOKUP_SEP
from django_filters.fields import IsoDateTimeField
from django_filters.rest_framework import DjangoFilterBackend
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

ALWAYS = {"limit", "cursor", "ordering", "fields", "format"}
LOOKUPS = {"gt": "after", "gte": "from", "lt": "before", "lte": "up to", "icontains": "with, in any case,"}
UNESCAPED = re.compile(r"(T\S+) (\d\d(?::?\d\d)?)$")
TRUTH = (("true", "true"), ("false", "false"))


def filterset(model: type[models.Model], /, **columns: str) -> type[django_filters.FilterSet]:
    """Makes filters by parameter name: a path of columns, and at its end a lookup where it is not equality.

    `filterset(Node, site="cluster__site__name", since="created_at__gte")`.
    """
    made = {name: _filter(model, path) for name, path in columns.items()}
    meta = type("Meta", (), {"model": model, "fields": []})
    return type(f"{model.__name__}Filters", (django_filters.FilterSet,), {**made, "Meta": meta})


def require_known(query: Iterable[str], known: Collection[str]) -> None:
    """Refuses parameters of a view that lists no rows, so that a typo never has another meaning."""
    for given in query:
        if given not in known:
            raise ValidationError({given: f"there is no such parameter; known are {', '.join(known)}"})


def _filter(model: type[models.Model], path: str) -> django_filters.Filter:
    steps = path.split(LOOKUP_SEP)
    lookup = steps.pop() if steps[-1] in LOOKUPS else "exact"
    owner: Any = model
    for step in steps[:-1]:
        owner = owner._meta.get_field(step).related_model
    column = owner._meta.get_field(steps[-1])
    options = {"field_name": LOOKUP_SEP.join(steps), "lookup_expr": lookup, "help_text": _help(column, lookup)}
    match column:
        case _ if column.choices and lookup == "exact":
            return django_filters.ChoiceFilter(choices=column.choices, **options, **_said(column.choices))
        case models.BooleanField():
            return TruthFilter(**options)
        case models.DateTimeField():
            return MomentFilter(**options)
        case models.UUIDField():
            return django_filters.UUIDFilter(**options)
        case models.IntegerField() | models.ForeignKey() | models.AutoField():
            return WholeNumberFilter(**options)
        case models.FloatField():
            return django_filters.NumberFilter(**options)
    return django_filters.CharFilter(max_length=column.max_length or 500, strip=False, **options)


def _said(choices: Iterable[Any]) -> dict[str, Any]:
    """The error of a value that is no choice: it names those that are."""
    return {"error_messages": {"invalid_choice": f"give one of: {', '.join(str(value) for value, _ in choices)}"}}


class WholeNumberFilter(django_filters.NumberFilter):
    field_class = forms.IntegerField


@extend_schema_field(OpenApiTypes.BOOL)
class TruthFilter(django_filters.TypedChoiceFilter):
    def __init__(self, **options: Any) -> None:
        super().__init__(choices=TRUTH, coerce=lambda text: text == "true", **options, **_said(TRUTH))


class MomentField(IsoDateTimeField):
    """A moment in UTC: PostgreSQL refuses offsets beyond 15:59, which ISO 8601 has, and days outside the calendar.

    The plus of an offset comes as a space where a client has not escaped it.
    """

    def to_python(self, value: object) -> datetime | None:
        found = super().to_python(UNESCAPED.sub(r"\1+\2", value.strip()) if isinstance(value, str) else value)
        try:
            return None if found is None else found.astimezone(UTC)
        except OverflowError:
            raise forms.ValidationError(f"{value} is not within the years 1 to 9999 in UTC.") from None


class MomentFilter(django_filters.IsoDateTimeFilter):
    field_class = MomentField

    def __init__(self, **options: Any) -> None:
        said = {"invalid": "give a time such as 2026-11-02T08:30:00Z"}
        super().__init__(**options, error_messages=said)


def _help(column: Any, lookup: str) -> str:
    words = str(getattr(column, "help_text", "") or "")
    return f"Only those {LOOKUPS[lookup]} this. {words}".strip() if lookup in LOOKUPS else words


class Filters(DjangoFilterBackend):
    """Filters as django-filter does, but refuses a parameter that nobody knows, and one without a value."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        chosen = self.get_filterset_class(view, queryset)
        known = sorted(chosen.base_filters) if chosen is not None else []
        for name, value in request.query_params.items():
            if name in known and not value:
                raise ValidationError({name: "it is empty: give a value, or leave the filter out"})
            if name not in known and name not in ALWAYS:
                raise ValidationError({name: f"this list has no such filter; it has: {', '.join(known) or 'none'}"})
        found: QuerySet[Any] = super().filter_queryset(request, queryset, view)
        return found
