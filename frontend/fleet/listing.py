"""Lists: filter, sort and page rows by what stands in the URL. The same for every list, so that they feel the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.core.paginator import Page, Paginator
from django.http import HttpRequest

T = TypeVar("T")
PAGE = 50


@dataclass(frozen=True, slots=True)
class Column:
    """A heading. `key`: the row's attribute that it sorts by; empty: it does not sort."""

    key: str
    label: str
    number: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    column: Column
    direction: str  # ascending | descending | none
    toggled: str  # the `sort` of the URL when it is clicked


@dataclass(frozen=True, slots=True)
class Filter:
    name: str
    label: str
    value: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    headings: tuple[Heading, ...]
    filters: tuple[Filter, ...]
    page: Page[T]
    q: str
    total: int
    sort: str

    @property
    def narrowed(self) -> bool:
        return bool(self.q) or any(one.value for one in self.filters)


def listing(
    request: HttpRequest,
    rows: Sequence[T],
    columns: Sequence[Column],
    *,
    default: str = "",
    search: Callable[[T], str] | None = None,
    filters: Mapping[str, str] | None = None,
    options: Mapping[str, Sequence[str]] | None = None,
    size: int = PAGE,
) -> Listing[T]:
    """Returns a page of the rows that match `q` and the filters, sorted by `sort` (a column's key; `-`: descending).

    Args:
        filters: attribute of a row -> label; its options are the values that occur.
        options: of a filter, where they are not to be looked for in the rows.
        default: the sort without one in the URL; empty: as the rows come.
    """
    asked = {name: request.GET.get(name, "") for name in filters or {}}
    given = options or {}
    offered = tuple(
        Filter(name, label, asked[name], tuple(given[name]) if name in given else _values(rows, name))
        for name, label in (filters or {}).items()
    )
    q = request.GET.get("q", "").strip()[:100]
    words = q.lower().split()
    found = [
        row
        for row in rows
        if all(not value or str(getattr(row, name)) == value for name, value in asked.items())
        and (not words or search is None or all(word in search(row).lower() for word in words))
    ]
    sort = request.GET.get("sort", default)
    key, downwards = sort.lstrip("-"), sort.startswith("-")
    if key and any(column.key == key for column in columns):
        found = _sorted(found, key, downwards)
    page = Paginator(found, size).get_page(request.GET.get("page"))
    headings = tuple(_heading(column, key, downwards) for column in columns)
    return Listing(headings, offered, page, q, len(rows), sort)


def _values(rows: Sequence[Any], name: str) -> tuple[str, ...]:
    return tuple(sorted({str(value) for row in rows if (value := getattr(row, name))}))


def _sorted(rows: list[T], key: str, downwards: bool) -> list[T]:
    """Sorts rows; unknown values come last in both directions."""
    known = [row for row in rows if getattr(row, key) is not None]
    unknown = [row for row in rows if getattr(row, key) is None]

    def value(row: T) -> Any:
        found = getattr(row, key)
        return found.lower() if isinstance(found, str) else found

    return [*sorted(known, key=value, reverse=downwards), *unknown]


def _heading(column: Column, key: str, downwards: bool) -> Heading:
    if not column.key or column.key != key:
        return Heading(column, "none", f"-{column.key}" if column.number else column.key)
    return Heading(column, "descending" if downwards else "ascending", key if downwards else f"-{key}")
