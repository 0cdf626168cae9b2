"""Reads a fleet through REST, and asks it what would follow from a plan. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .document import Fault
from .kinds import KINDS
from .plan import Action, Plan, PlannedChange, PresentRow, present_row
from .values import Key, WrongValueError, sent

MOST_TRIED = 100  # rows of one request, so that an answer comes within its time limit
Method = Literal["GET", "POST", "PATCH", "DELETE"]


class FleetApi(Protocol):
    """What is needed of greenserve.client.Client: it raises GreenServeError, and each call has a time limit."""

    def call(self, method: Method, path: str, body: object = None, *, etag: str | None = None) -> Any: ...

    def rows(self, path: str) -> Iterator[dict[str, Any]]: ...


class OtherVersionError(Exception):
    """REST shows rows that this version of the program does not know."""


@dataclass(frozen=True, slots=True)
class Consequence:
    """What would follow from one change, as the API says it: an error keeps it from being stored."""

    level: str
    field: str
    text: str


Consequences = Mapping[tuple[str, Key], Sequence[Consequence]]


def read(api: FleetApi, names: Iterable[str]) -> dict[str, list[PresentRow]]:
    """Returns the rows of these kinds. Raises OtherVersionError, and as the API's client does."""
    return {name: read_kind(api, name) for name in names}


def read_kind(api: FleetApi, name: str) -> list[PresentRow]:
    try:
        return [present_row(KINDS[name], row) for row in api.rows(f"{name}/")]
    except (KeyError, TypeError, WrongValueError) as error:
        raise OtherVersionError(
            f"{name}/ answers otherwise than this version of GreenServe knows it ({error}): install the version that "
            "answers there"
        ) from None


def body_of(change: PlannedChange) -> dict[str, Any]:
    """Returns the fields of a creation or change as REST takes them."""
    return {name: sent(KINDS[change.kind].field(name), value) for name, value in change.values.items()}


def consequences(api: FleetApi, plan: Plan, left_out: Collection[tuple[str, Key]]) -> Consequences:
    """Returns what the API says of creations and changes; it stores nothing.

    Args:
        left_out: Rows that cannot be tried beforehand.
    """
    found: dict[tuple[str, Key], Sequence[Consequence]] = {}
    for name in KINDS:
        changes = [
            one
            for one in (*plan.of(name, Action.CREATE), *plan.of(name, Action.CHANGE))
            if (one.kind, one.key) not in left_out
        ]
        for begin in range(0, len(changes), MOST_TRIED):
            tried = changes[begin : begin + MOST_TRIED]
            results = api.call("POST", f"{name}/validate/", [_item(change) for change in tried])
            for change, result in zip(tried, results, strict=True):
                found[change.kind, change.key] = [_consequence(one) for one in result["consequences"]]
    return found


def refused(plan: Plan, said: Consequences, uncertain: Collection[tuple[str, Key]]) -> list[Fault]:
    """Returns the errors among the consequences, each with its place in the files; those of `uncertain` rows are none
    yet."""
    return [
        change.wanted.fault(one.field, one.text)
        for change in plan.changes
        if change.wanted is not None and (change.kind, change.key) not in uncertain
        for one in said.get((change.kind, change.key), ())
        if one.level == "error"
    ]


def _item(change: PlannedChange) -> dict[str, Any]:
    return body_of(change) if change.present is None else {"id": change.present.id, **body_of(change)}


def _consequence(one: Mapping[str, Any]) -> Consequence:
    return Consequence(str(one["level"]), str(one["field"]), str(one["text"]))
