"""A plan and its outcome as people read them, and as programs do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from .check import Dependants
from .document import Fault
from .execution import Outcome
from .kinds import KINDS, counted
from .plan import Action, Plan, PlannedChange
from .remote import Consequences
from .values import Key, key_text

COLOURS = {Action.CREATE: "green", Action.CHANGE: "yellow", Action.DELETE: "red"}
DONE = {Action.CREATE: "made", Action.CHANGE: "changed", Action.DELETE: "deleted"}


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """A plan with all that is said of it.

    Attributes:
        said: What the API says of each change.
        untried: The rows that it could not be asked about.
        uncertain: The rows whose errors may be none when it is their turn.
        dependants: The rows that name what would be deleted.
    """

    plan: Plan
    said: Consequences
    untried: Collection[tuple[str, Key]]
    uncertain: Collection[tuple[str, Key]]
    dependants: Mapping[tuple[str, Key], Sequence[Dependants]]


def lines(shown: ShownPlan) -> Iterator[str]:
    """Yields the plan, a paragraph for each change, and its sums at the end."""
    for change in shown.plan.changes:
        yield from _change(shown, change)
    if same := ", ".join(counted(kind, count) for kind, count in shown.plan.unchanged.items() if count):
        yield f"= unchanged: {same}"
    yield _sums(shown.plan)


def _change(shown: ShownPlan, change: PlannedChange) -> Iterator[str]:
    key = (change.kind, change.key)
    place = f"  ({change.wanted.mark})" if change.wanted is not None else ""
    version = ", as another version" if change.action is Action.CHANGE and KINDS[change.kind].versions else ""
    yield click.style(f"{change.action.value} {change.label}{version}", fg=COLOURS[change.action]) + place
    if change.action is Action.CREATE:
        lookup = KINDS[change.kind].lookup
        yield "    " + (", ".join(f"{one.name}: {one.new}" for one in change.fields if one.name not in lookup) or "-")
    for one in change.fields if change.action is Action.CHANGE else ():
        yield f"    {one.name}: {one.old or '(not set)'} -> {one.new or '(not set)'}"
    for said in shown.said.get(key, ()):
        perhaps = said.level == "error" and key in shown.uncertain
        words = f"    {said.level}: {f'{said.field}: ' if said.field else ''}{said.text}"
        more = " (perhaps no longer once the changes above are stored)" if perhaps else ""
        yield click.style(words + more, fg="red" if said.level == "error" and not perhaps else None)
    if key in shown.untried:
        yield "    its consequences are known when it is made: it depends on rows that this plan makes"
    if users := shown.dependants.get(key):
        yield f"    warning: named by {', '.join(map(str, users))}: deleted with it, or the API refuses to delete it"


def _sums(plan: Plan) -> str:
    made, changed, deleted = (plan.count(action) for action in (Action.CREATE, Action.CHANGE, Action.DELETE))
    if not plan.changes:
        return "Nothing would change: the fleet is as the files say."
    return f"Plan: {made} to make, {changed} to change, {deleted} to delete, {sum(plan.unchanged.values())} unchanged."


def done_line(change: PlannedChange) -> str:
    return f"{DONE[change.action]} {change.label}"


def deletions(plan: Plan) -> dict[str, int]:
    """Returns how many rows of each kind would be deleted, in the order in which they would be."""
    return dict(Counter(change.kind for change in plan.changes if change.action is Action.DELETE))


def outcome_lines(outcome: Outcome) -> Iterator[str]:
    """Yields what was done and what was not; each change that was done has been named before."""
    if not outcome.error:
        yield f"Done: {len(outcome.done)} changes."
        return
    yield f"Stopped: {outcome.error}"
    yield f"Done: {len(outcome.done)} changes. Not done: {len(outcome.left)} changes."
    yield from (f"  not {DONE[change.action]}: {change.label}" for change in outcome.left)
    yield "Mend what is wrong and run it again: it goes on with what is left."


def as_json(shown: ShownPlan) -> dict[str, Any]:
    plan = shown.plan
    return {
        "create": plan.count(Action.CREATE),
        "change": plan.count(Action.CHANGE),
        "delete": plan.count(Action.DELETE),
        "unchanged": dict(plan.unchanged),
        "changes": [_change_json(shown, change) for change in plan.changes],
    }


def _change_json(shown: ShownPlan, change: PlannedChange) -> dict[str, Any]:
    key = (change.kind, change.key)
    return {
        **_identity(change),
        "at": None if change.wanted is None else str(change.wanted.mark),
        "fields": [asdict(one) for one in change.fields],
        "consequences": [asdict(one) for one in shown.said.get(key, ())],
        "tried": key in shown.said and key not in shown.uncertain,
        "named_by": {one.kind: one.count for one in shown.dependants.get(key, ())},
    }


def _identity(change: PlannedChange) -> dict[str, str]:
    return {"action": change.action.name.lower(), "kind": change.kind, "key": key_text(change.key)}


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "done": [_identity(change) for change in outcome.done],
        "not_done": [_identity(change) for change in outcome.left],
        "error": outcome.error or None,
    }


def faults_json(faults: Sequence[Fault]) -> list[dict[str, Any]]:
    return [{**asdict(fault.mark), "where": fault.where, "detail": fault.words} for fault in faults]
