"""Pages by cursor: counting millions of rows would cost more than the page, and new ones come in between."""

from __future__ import annotations

import binascii
from typing import Any

from django.core.exceptions import ValidationError as ModelError
from django.db import DataError
from django.db.models import QuerySet
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

PAGE_SIZE, MAX_PAGE_SIZE = 50, 500


class Pages(CursorPagination):
    """`limit` rows a page; `next` and `previous` are links, null at the ends.

    The order is the one asked for with `ordering`, of those that the view allows, and the key at last.
    """

    page_size = PAGE_SIZE
    max_page_size = MAX_PAGE_SIZE
    page_size_query_param = "limit"
    offset_cutoff = 100_000  # rows alike in the order's first column; the cursor counts on among them

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: Any) -> tuple[str, ...]:
        default = tuple(getattr(view, "ordering", ("-pk",)))
        asked = request.query_params.get("ordering")
        if asked is None:
            return default
        allowed = tuple(getattr(view, "ordering_fields", ()))
        names = asked.split(",")
        for name in names:
            if name.removeprefix("-") not in allowed:
                raise ValidationError({"ordering": f"give one of: {', '.join(allowed) or 'nothing, it is fixed'}"})
        if len(names) > 1:
            raise ValidationError({"ordering": "give one field; rows alike in it are ordered by their key"})
        sign = "-" if asked.startswith("-") else ""
        return (asked, f"{sign}{default[-1].removeprefix('-')}")

    def get_page_size(self, request: Request) -> int:
        asked = request.query_params.get("limit")
        if asked is None:
            return PAGE_SIZE
        if not (asked.isascii() and asked.isdigit() and len(asked) < 7 and 1 <= int(asked) <= MAX_PAGE_SIZE):
            raise ValidationError({"limit": f"give a whole number from 1 to {MAX_PAGE_SIZE}"})
        return int(asked)

    def paginate_queryset(self, queryset: QuerySet[Any], request: Request, view: Any = None) -> list[Any] | None:
        """Raises ValidationError for a cursor that is not one of ours."""
        try:
            rows: list[Any] | None = super().paginate_queryset(queryset, request, view)
        except (NotFound, ModelError, ValueError, TypeError, DataError, OverflowError, binascii.Error):
            raise ValidationError({"cursor": "this is no cursor; follow the links of an answer"}) from None
        return rows

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        def link(words: str) -> dict[str, Any]:
            return {"type": ["string", "null"], "format": "uri", "description": words}

        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {
                "next": link("The page after this one; null: this is the last."),
                "previous": link("The page before this one; null: this is the first."),
                "results": schema,
            },
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        limit = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_SIZE, "default": PAGE_SIZE}
        found: list[dict[str, Any]] = [
            {"name": "limit", "in": "query", "description": "Rows a page.", "schema": limit},
            {
                "name": "cursor",
                "in": "query",
                "description": "Where the page begins: from the link `next` or `previous` of another.",
                "schema": {"type": "string"},
            },
        ]
        if names := tuple(getattr(view, "ordering_fields", ())):
            choices = [sign + name for name in names for sign in ("", "-")]
            words = "The field to order by; with a minus the largest first."
            found.append(
                {"name": "ordering", "in": "query", "description": words, "schema": {"type": "string", "enum": choices}}
            )
        return found
