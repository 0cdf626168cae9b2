"""Carries a plan out through REST: kind by kind, in the order of references, and stops at the first refusal.

Each request is all or nothing, and there is none for several kinds: so what was done is said, and what was not, and the
same files applied again go on from there.

Loops, feeds and other people write to the same rows. So each kind is read again just before it is changed: where a
field that people set is not as the plan has it, nothing of the kind is stored. The fresh ETag then keeps the row to
that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from greenserve.client.errors import GreenServeError, InvalidError, NotFoundError, ProblemError, StaleError

from .document import WantedRow
from .kinds import KINDS
from .plan import Action, Plan, PlannedChange, PresentRow, by_key, compare
from .remote import FleetApi, OtherVersionError, body_of, read_kind
from .values import Key, same

MOST_SENT = 500  # rows of one request, the API's own limit
TRIES = 3  # where a loop or a feed writes to the row between reading and changing it

Report = Callable[[PlannedChange], None]


class RefusedError(Exception):
    """A step that was not carried out. The text says why, with the place in the file where there is one."""


@dataclass(slots=True)
class Outcome:
    """The changes of a plan that are done and those that are left. `error`: why it stopped; empty: all is done."""

    done: list[PlannedChange] = field(default_factory=list)
    left: list[PlannedChange] = field(default_factory=list)
    error: str = ""


def carry_out(api: FleetApi, plan: Plan, report: Report) -> Outcome:
    """Carries the plan out. `report` is called with each change once it is stored."""
    outcome = Outcome()
    for (kind, action), step in groupby(plan.changes, lambda change: (change.kind, change.action)):
        changes = list(step)
        if not outcome.error:
            try:
                _STEPS[action](api, kind, changes, _noting(outcome, report))
            except (RefusedError, GreenServeError, OtherVersionError) as error:
                outcome.error = f"{kind}: {error}"
        done = {id(one) for one in outcome.done}
        outcome.left += [change for change in changes if id(change) not in done]
    return outcome


def _noting(outcome: Outcome, report: Report) -> Report:
    def note(change: PlannedChange) -> None:
        outcome.done.append(change)
        report(change)

    return note


def _create(api: FleetApi, kind: str, changes: Sequence[PlannedChange], note: Report) -> None:
    if KINDS[kind].comes_with:
        _create_groups(api, kind, changes, note)
        return
    there = by_key(read_kind(api, kind))
    for change in changes:
        if change.key in there:
            raise RefusedError(f"{_place(change)} has been made since the plan was: {_AGAIN}")
    for chunk in _chunks(changes):
        _send(api, "POST", kind, chunk, [body_of(change) for change in chunk])
        _note_all(chunk, note)


def _create_groups(api: FleetApi, kind: str, changes: Sequence[PlannedChange], note: Report) -> None:
    """Makes rows that bring others, one of each group at a time, and gives what they brought the wanted values."""
    wanted = {change.key: change.wanted for change in changes if change.wanted is not None}
    before = len(wanted) + 1
    while missing := [one for one in _still(api, kind, wanted).changes if one.action is Action.CREATE]:
        if len(missing) >= before:
            raise RefusedError(f"{_place(missing[0])} is not there although it was made; your role may not see it")
        before = len(missing)
        firsts = {tuple(one.values[name] for name in KINDS[kind].comes_with): one for one in reversed(missing)}
        chunk = list(firsts.values())[:MOST_SENT]
        _send(api, "POST", kind, chunk, [body_of(change) for change in chunk])
    _update(api, kind, _still(api, kind, wanted).changes, lambda change: None)
    _note_all(changes, note)


def _still(api: FleetApi, kind: str, wanted: dict[Key, WantedRow]) -> Plan:
    return compare({kind: wanted}, {kind: read_kind(api, kind)})


def _update(api: FleetApi, kind: str, changes: Sequence[PlannedChange], note: Report) -> None:
    there = by_key(read_kind(api, kind)) if changes else {}
    for change in changes:
        _fresh(change, there)  # all are as planned, or none is changed
    for chunk in _chunks(changes):
        for attempt in range(1, TRIES + 1):
            there = by_key(read_kind(api, kind))
            items = [{"id": _id(one), "etag": _fresh(one, there).etag, **body_of(one)} for one in chunk]
            if _sent(api, kind, chunk, items, last=attempt == TRIES):
                break
        _note_all(chunk, note)


def _sent(api: FleetApi, kind: str, chunk: Sequence[PlannedChange], items: list[dict[str, Any]], *, last: bool) -> bool:
    """Sends changes. False: only ETags were out of date, and there is another try."""
    try:
        api.call("PATCH", f"{kind}/", items)
    except InvalidError as error:
        if not last and error.errors and all(one.field.endswith(".etag") for one in error.errors):
            return False
        raise _in_words(error, chunk) from None
    return True


def _delete(api: FleetApi, kind: str, changes: Sequence[PlannedChange], note: Report) -> None:
    there = by_key(read_kind(api, kind))
    for change in changes:
        _fresh(change, there)  # all are as planned, or none is deleted
    for change in changes:
        for attempt in range(1, TRIES + 1):
            try:
                api.call("DELETE", f"{kind}/~{_id(change)}/", etag=_fresh(change, there).etag)
                break
            except NotFoundError:
                break  # it went with another row, or somebody else deleted it
            except StaleError:
                if attempt == TRIES:
                    raise
                there = by_key(read_kind(api, kind))
            except ProblemError as error:
                raise RefusedError(f"{_place(change)}: {error}") from None
        note(change)


_STEPS = {Action.CREATE: _create, Action.CHANGE: _update, Action.DELETE: _delete}
_AGAIN = "nothing of this step is stored; run it again to see the plan that holds now"


def _send(api: FleetApi, method: Any, kind: str, chunk: Sequence[PlannedChange], items: list[dict[str, Any]]) -> None:
    try:
        api.call(method, f"{kind}/", items)
    except InvalidError as error:
        raise _in_words(error, chunk) from None


def _in_words(error: InvalidError, chunk: Sequence[PlannedChange]) -> RefusedError:
    """Names the rows and their places for the fields of a refused list, which the API numbers."""
    lines = []
    for one in error.errors:
        number, _, name = one.field.partition(".")
        change = chunk[int(number)] if number.isdigit() and int(number) < len(chunk) else None
        text = f"{one.detail} {one.remedy}" if one.remedy else one.detail
        if change is None or change.wanted is None:
            lines.append(f"{one.field}: {text}")
        else:
            lines.append(str(change.wanted.fault(name, text)))
    return RefusedError("\n".join(lines) or str(error))


def _fresh(change: PlannedChange, there: dict[Key, PresentRow]) -> PresentRow:
    """Returns the row as it is now. Raises RefusedError where it is not the one that the plan was made for."""
    was, now = change.present, there.get(change.key)
    assert was is not None
    if now is None or now.id != was.id:
        raise RefusedError(f"{_place(change)} has been deleted or replaced since the plan was made: {_AGAIN}")
    kind = KINDS[change.kind]
    moved = [
        spec.name
        for spec in kind.fields
        if spec.name not in kind.once and not same(spec, was.values[spec.name], now.values[spec.name])
    ]
    if moved:
        raise RefusedError(f"{_place(change)}: somebody changed {', '.join(moved)} since the plan was made: {_AGAIN}")
    return now


def _place(change: PlannedChange) -> str:
    return f"{change.wanted.mark}: {change.label}" if change.wanted is not None else change.label


def _id(change: PlannedChange) -> int:
    assert change.present is not None
    return change.present.id


def _chunks(changes: Sequence[PlannedChange]) -> list[Sequence[PlannedChange]]:
    return [changes[begin : begin + MOST_SENT] for begin in range(0, len(changes), MOST_SENT)]


def _note_all(changes: Sequence[PlannedChange], note: Report) -> None:
    for change in changes:
        note(change)
