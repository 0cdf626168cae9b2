"""The load of each class since a loop's last turn, for loops that look each few seconds.

Requests are on record when they end. Those that came in a time are those that ended in it, and as many as there are
more under way at its end than at its beginning.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.db.models import Sum
from numpy.typing import NDArray

from core.observations.demand.class_arrivals import STRETCH_S
from core.observations.demand.class_view import Declared
from pools.models import Instance
from scheduler import agents
from scheduler.control.snapshot.snapshot import ClassNow
from scheduler.control.steps.policy_steps import LoopTurn
from telemetry.models import DemandSketch

UNDER_WAY_S = 2.0  # that records take from the gateway to the database
MEMORY = "recent_load"  # in the loop's state
MEMORY_0_1 = "lately"  # the same in a state that version 0.1 wrote; the next version need not read it
_LEAST_SHARE, _MOST_PERIODS = 0.5, 3.0  # of a period: turns closer than that measure nothing; later ones are no memory


@dataclass(frozen=True, slots=True)
class RecentLoad:
    """Requests a second that came, and requests that wait at engines, by class (a class without a report has none).

    `stretches`: the requests of each stretch of the look-back, oldest first. `memory`: what the next turn is to find in
    its state under `MEMORY`.
    """

    rates_rps: Mapping[str, float]
    stretches: Mapping[str, Sequence[float]]
    waiting: Mapping[str, int]
    memory: Mapping[str, Any]


def measure(
    turn: LoopTurn, classes: Mapping[str, ClassNow], declared: Declared | None, look_s: float = 0.0
) -> RecentLoad:
    """Measures the load of each class since the last turn, and over `look_s`.

    A new service's rate is no less than was declared; its stretches are what came.
    """
    now_s, period = turn.context.now.timestamp(), turn.context.times.scale_s
    under_way, waiting, heard = _at_engines(turn)
    before = turn.state.get(MEMORY, turn.state.get(MEMORY_0_1, {}))
    since_s = now_s - before.get("at_s", -math.inf)
    past: Mapping[str, Sequence[float]] = before.get("stretches", {})
    if since_s < _LEAST_SHARE * period and classes.keys() <= past.keys():
        return RecentLoad(before["rates_rps"], past, waiting, before)  # two turns on end, or out of order
    known = 0.0 < since_s <= _MOST_PERIODS * period
    window_s = since_s if known else period
    until_s = _whole_s(now_s)
    first_s = min(_whole_s(before["at_s"] if known else now_s - period), until_s - STRETCH_S)
    goes_on = known and classes.keys() <= past.keys()
    looks, span = round(look_s / STRETCH_S), round((until_s - first_s) / STRETCH_S)
    fresh = round((until_s - _whole_s(before["at_s"])) / STRETCH_S) if goes_on else looks
    ended = _ended(turn, until_s, max(span, fresh))
    only = next(iter(classes)) if len(classes) == 1 else None  # whatever it was called under another partition
    comparable = before.get("under_way", {}) if known and before.get("heard") == heard else {}
    rates, stretches = {}, {}
    for name in classes:
        more = under_way[name] - comparable[name] if name in comparable and name in under_way else 0
        came = sum(ended.values(), np.zeros(max(span, fresh))) if name == only else ended[name]
        came[-span:] += more / window_s * STRETCH_S
        rates[name] = max(0.0, float(came[-span:].sum()) / (until_s - first_s))
        seen = [*(past[name] if goes_on else ()), *np.maximum(0.0, came[came.size - fresh :]).tolist()]
        stretches[name] = seen[max(0, len(seen) - looks) :]
    if declared is not None:
        name = declared.class_name([own.request_class for own in classes.values()])
        rates[name] = max(rates[name], declared.rps)
    memory = {"at_s": now_s, "under_way": under_way, "heard": heard, "rates_rps": rates, "stretches": stretches}
    return RecentLoad(rates, stretches, waiting, memory)


def _at_engines(turn: LoopTurn) -> tuple[dict[str, int], dict[str, int], list[str]]:
    """Counts the requests at the engines of each class and how many of them wait, as agents report now; and names the
    agents that did.

    Only between the same agents' reports a difference tells of arrivals.
    """
    rows = Instance.objects.filter(pool__service=turn.context.service).exclude(state=Instance.State.STOPPED)
    class_of = {str(uid): name for uid, name in rows.values_list("uid", "pool__request_class__name")}
    every: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    states = agents.states(agents.connect(), turn.context.reporting)
    for agent in states.values():
        for seen in agent.instances:
            if seen.uid in class_of and seen.running is not None and seen.waiting is not None:
                every[class_of[seen.uid]] += seen.running + seen.waiting
                waiting[class_of[seen.uid]] += seen.waiting
    return dict(every), dict(waiting), sorted(states)


def _whole_s(now_s: float) -> float:
    """Returns the end of the last whole stretch whose records can all have come: what ended is counted by stretches,
    each of them in one turn."""
    return (now_s - UNDER_WAY_S) // STRETCH_S * STRETCH_S


def _ended(turn: LoopTurn, until_s: float, count: int) -> dict[str, NDArray[np.float64]]:
    """Counts the requests of each class that ended in each of the last `count` stretches before `until_s`."""
    first_s = until_s - count * STRETCH_S
    rows = DemandSketch.objects.filter(
        service=turn.context.service.name,
        start_at__gte=datetime.fromtimestamp(first_s, UTC),
        start_at__lt=datetime.fromtimestamp(until_s, UTC),
    )
    found: defaultdict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(count))
    for name, start_at, ended in rows.values_list("request_class", "start_at").annotate(Sum("ended")):
        found[name][int((start_at.timestamp() - first_s) // STRETCH_S)] += ended
    return found
