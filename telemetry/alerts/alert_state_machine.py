"""The life of an alert, as a function of what was watched before and what is read now. Pure.

An alert opens when its rule has fired for `for_s` without a break, and ends when the value has stayed below `clear` for
`resolve_s`: between `clear` and `threshold` nothing changes, so that a value which wavers around its threshold raises
one alert and not many. Unknown is neither good nor bad: nothing opens and nothing ends on it.

The state is written down with the time of the last look. A look at the same time again, or at an earlier one, changes
nothing; after a pause in which nobody looked, waiting begins anew, since nobody knows what happened meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

Key = tuple[str, str]  # rule, subject


class Level(StrEnum):
    """bad: something does not work, or soon will not. warn: it works, not as it should."""

    BAD = "bad"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule says when an alert is raised.

    Attributes:
        name: Stable: rows, silences and webhooks are named by it.
        threshold: The rule fires from this value on; `clear`: below this it is over.
        unit: Of both and of the value: s, W, a `share`, `times`, or nothing for a count.
        for_s, resolve_s: How long it must fire, or be over, without a break.
        step: What to do next, in one line; `{subject}` is filled in.
    """

    name: str
    title: str
    level: Level
    threshold: float
    clear: float
    unit: str
    for_s: float
    resolve_s: float
    step: str

    def __post_init__(self) -> None:
        """Raises ValueError naming the field that makes no sense."""
        if not (math.isfinite(self.threshold) and self.clear <= self.threshold):
            raise ValueError(f"{self.name}: clear must be at most threshold, not {self.clear:g} > {self.threshold:g}")
        if not (0.0 <= self.for_s < math.inf and 0.0 <= self.resolve_s < math.inf):
            raise ValueError(f"{self.name}: for_s and resolve_s must be at least 0")


@dataclass(frozen=True, slots=True)
class Reading:
    """A value of one subject now; None: it cannot be known. `summary` is the sentence that people read."""

    rule: str
    subject: str
    value: float | None
    summary: str
    level: Level | None = None  # other than the rule's
    step: str = ""  # other than the rule's
    decision_id: int | None = None

    @property
    def key(self) -> Key:
        return self.rule, self.subject


@dataclass(frozen=True, slots=True)
class Watch:
    """The state of one rule and subject between two looks. `open`: there is an alert that has not ended."""

    at_s: float
    breach_since_s: float | None = None
    calm_since_s: float | None = None
    open: bool = False

    @property
    def idle(self) -> bool:
        """Nothing is to be remembered."""
        return not self.open and self.breach_since_s is None


class Change(StrEnum):
    RAISED = "raised"
    SEEN = "seen"  # it is open and its rule still fires, or is not known to be over
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Step:
    """The consequence of a look at one rule and subject. `reading` None: the subject is no longer there."""

    key: Key
    watch: Watch
    change: Change | None
    reading: Reading | None


def step(rule: Rule, watch: Watch | None, value: float | None, now_s: float, longest_pause_s: float) -> Watch:
    """Returns the watch after a look at `value`. Only `watch.open` says whether there is an alert."""
    if watch is not None and now_s <= watch.at_s:
        return watch
    before = watch or Watch(now_s)
    if now_s - before.at_s > longest_pause_s:
        before = replace(before, breach_since_s=None, calm_since_s=None)
    if value is None or math.isnan(value):
        return Watch(now_s, None, None, before.open)
    if value >= rule.threshold:
        since_s = now_s if before.breach_since_s is None else before.breach_since_s
        return Watch(now_s, since_s, None, before.open or now_s - since_s >= rule.for_s)
    if not before.open:
        return Watch(now_s)
    if value >= rule.clear:
        return Watch(now_s, None, None, open=True)
    since_s = now_s if before.calm_since_s is None else before.calm_since_s
    return Watch(now_s, None, since_s, open=now_s - since_s < rule.resolve_s)


def look(
    rules: Mapping[str, Rule],
    watches: Mapping[Key, Watch],
    readings: Iterable[Reading],
    answered: Iterable[str],
    now_s: float,
    longest_pause_s: float,
) -> list[Step]:
    """Makes one round over everything that was read or is remembered, in the order of the keys.

    Args:
        answered: The rules whose source could be read. A subject that such a source no longer names is gone, and its
            alert ends as if it were well; of the other rules nothing is known, and nothing changes.
    """
    found = {reading.key: reading for reading in readings if reading.rule in rules}
    known = set(answered)
    steps = []
    for key in sorted({*found, *(key for key in watches if key[0] in rules and key[0] in known)}):
        rule, reading, before = rules[key[0]], found.get(key), watches.get(key)
        value = reading.value if reading is not None else -math.inf
        after = step(rule, before, value, now_s, longest_pause_s)
        if after == before or (before is None and after.idle):
            continue
        steps.append(Step(key, after, _change(before, after), reading))
    return steps


def _change(before: Watch | None, after: Watch) -> Change | None:
    was_open = before is not None and before.open
    if after.open:
        return Change.SEEN if was_open else Change.RAISED
    return Change.RESOLVED if was_open else None
