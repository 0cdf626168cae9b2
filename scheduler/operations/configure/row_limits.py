"""What a row's limits are, in words and by field: the database's own words are names of constraints."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import CheckConstraint, F, JSONField, Model, Q

from core import bounds

_LOOKUPS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "gt": (operator.gt, "above"),
    "gte": (operator.ge, "at least"),
    "lte": (operator.le, "at most"),
}
_CURRENCY = "^[A-Z]{3}$"
MOST_LEVELS = 50
TOO_DEEP = f"has more than {MOST_LEVELS} levels: it is nested too deeply"


def broken(row: Model, leave_out: Collection[str] = ()) -> dict[str, list[str]]:
    """Says for each quantity that cannot be and each check constraint that the row would break, by field (empty: of
    several together), in which way.

    Args:
        leave_out: Fields that are not to be judged; constraints that name one are passed over.
    """
    found: dict[str, list[str]] = {}
    for constraint in row._meta.constraints:
        if not isinstance(constraint, CheckConstraint):
            continue
        try:
            constraint.validate(type(row), row, exclude=set(leave_out))
        except ValidationError:
            for name, words in _broken(row, constraint):
                found.setdefault(name, []).append(words)
    for name, words in _impossible(row, leave_out):
        found.setdefault(name, [words])
    return found


def _impossible(row: Model, leave_out: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields the fields whose values are no such quantity's, and what they must be."""
    for field in row._meta.concrete_fields:
        if isinstance(field, JSONField) and field.name not in leave_out:
            if words := _json_fault(getattr(row, field.attname)):
                yield field.name, words
            continue
        value, bound = getattr(row, field.attname), bounds.of(field.name, row._meta.model_name or "")
        is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        if bound is None or not is_number or field.name in leave_out:
            continue
        if words := bound.fault(float(value)):
            yield field.name, words


def _json_fault(value: Any) -> str:
    """Says why the database cannot keep a value as JSON, or programs not read it again; empty: they can."""
    level = [value]
    for _ in range(MOST_LEVELS):
        if any(isinstance(one, float) and not math.isfinite(one) for one in level):
            return "has a number that is not finite"
        if any(isinstance(one, str) and "\0" in one for one in level):
            return "has a NUL character in a text"
        level = [inner for one in level for inner in _inner(one)]
        if not level:
            return ""
    return TOO_DEEP


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return [*value, *value.values()]
    return value if isinstance(value, list | tuple) else ()


def _broken(row: Model, constraint: CheckConstraint) -> Iterator[tuple[str, str]]:
    condition = constraint.condition
    leaves = list(_leaves(condition)) if isinstance(condition, Q) else []
    broken = {name: words for name, lookup, limit in leaves if (words := _words(row, name, lookup, limit))}
    if broken:
        yield from broken.items()
        return
    if lone := _without_others(row, leaves):
        yield from lone.items()
        return
    names = ", ".join(dict.fromkeys(name for name, _, _ in leaves)) or constraint.name
    yield "", f"{names} do not go together"


def _without_others(row: Model, leaves: Iterable[tuple[str, str, Any]]) -> dict[str, str]:
    """Says of fields that are given all or none which are missing; empty where the constraint is of another form."""
    if any(lookup != "isnull" for _, lookup, _ in leaves) or {bool(limit) for _, _, limit in leaves} != {True, False}:
        return {}
    given = {name: getattr(row, name, None) is not None for name, _, _ in leaves}
    there = ", ".join(name for name, known in given.items() if known)
    return {name: f"is needed with {there}: give all or none" for name, known in given.items() if not known}


def _leaves(condition: Q) -> Iterator[tuple[str, str, Any]]:
    """Yields field, lookup and limit of each comparison; an expression among them has none."""
    for child in condition.children:
        if isinstance(child, Q):
            yield from _leaves(child)
        elif isinstance(child, tuple):
            name, _, lookup = str(child[0]).partition("__")
            yield name, lookup or "exact", child[1]


def _words(row: Model, name: str, lookup: str, limit: Any) -> str:
    """Says what the field must be, where it is not; else empty."""
    value = getattr(row, name, None)
    if lookup == "regex":
        wrong = re.search(limit, str(value)) is None
        shape = "three capital letters, such as EUR (ISO 4217)" if limit == _CURRENCY else f"like {limit}"
        return f"must be {shape}" if wrong else ""
    if lookup not in _LOOKUPS:
        return ""
    is_kept, words = _LOOKUPS[lookup]
    shown = str(limit.deconstruct()[1][0]) if isinstance(limit, F) else f"{limit:g}"  # of F: the other field
    other = getattr(row, shown, None) if isinstance(limit, F) else limit
    if other is None or (value is not None and is_kept(value, other)):
        return ""
    return f"is needed here: {words} {shown}" if value is None else f"must be {words} {shown}"
