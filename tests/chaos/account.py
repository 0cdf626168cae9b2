"""What became of a replay's requests: answered, asked again, lost; and on record once, twice or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.replay import CUT, OK, Asked


@dataclass(frozen=True, slots=True)
class Requests:
    """`answered` at the first attempt, `retried`: answered at a later one, `lost`: at none. `cut`: attempts whose
    answer broke off. `longest_begin_s`: until an attempt's answer began. `missing`: whole answers without a record,
    `twice`: records too many. `ends`: of the lost."""

    sent: int
    answered: int
    retried: int
    lost: int
    cut: int
    longest_wait_s: float
    longest_begin_s: float
    recorded: int
    missing: int
    twice: int
    ends: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Outage:
    """When nobody served, of the monotonic clock, and whether what was answered before its end may be forgotten."""

    began_s: float
    ended_s: float
    forgets: bool

    def loses(self, asked: Sequence[Asked]) -> int:
        """Returns how many requests were lost since they were last sent while nobody served."""
        last = [one.attempts[-1].sent_s for one in asked if one.attempts and not one.answered]
        return sum(self.began_s <= sent_s <= self.ended_s for sent_s in last)

    def lacks(self, asked: Sequence[Asked], records: Mapping[str, int]) -> int:
        """Returns how many whole answers have no record since they were forgotten."""
        if not self.forgets:
            return 0
        whole = [attempt for one in asked for attempt in one.attempts if attempt.outcome == OK]
        return sum(attempt.traceparent not in records and attempt.sent_s <= self.ended_s for attempt in whole)


def of(asked: Sequence[Asked], records: Mapping[str, int]) -> Requests:
    """Counts. `records` is how many there are by `traceparent`."""
    answered = [one for one in asked if one.answered]
    lost = [one for one in asked if not one.answered]
    whole = [attempt.traceparent for one in asked for attempt in one.attempts if attempt.outcome == OK]
    return Requests(
        sent=len(asked),
        answered=sum(len(one.attempts) == 1 for one in answered),
        retried=sum(len(one.attempts) > 1 for one in answered),
        lost=len(lost),
        cut=sum(attempt.outcome == CUT for one in asked for attempt in one.attempts),
        longest_wait_s=round(max((one.waited_s for one in asked), default=0.0), 1),
        longest_begin_s=round(max((attempt.begun_s for one in asked for attempt in one.attempts), default=0.0), 1),
        recorded=sum(traceparent in records for traceparent in whole),
        missing=sum(traceparent not in records for traceparent in whole),
        twice=sum(number - 1 for number in records.values()),
        ends=dict(Counter(one.attempts[-1].outcome if one.attempts else "not sent" for one in lost)),
    )
