"""The recent load of each class, for loops that look each few seconds: what came, whether it has ended or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from core.observations.demand.class_arrivals import STRETCH_S
from pools.models import Instance
from scheduler import agents
from scheduler.control.snapshot.recorded_demand import DemandWindow
from scheduler.control.snapshot.snapshot import ClassNow
from scheduler.control.steps.policy_steps import LoopTurn

UNDER_WAY_S = 2.0  # that a record, or word of an open request, takes from the gateway to where it is counted


def known_until_s(turn: LoopTurn) -> float:
    """Returns the end of the last whole stretch of which all is known by now."""
    return (turn.context.now.timestamp() - UNDER_WAY_S) // STRETCH_S * STRETCH_S


def stretches(
    turn: LoopTurn, seen: DemandWindow, classes: Mapping[str, ClassNow], span_s: float
) -> dict[str, list[float]]:
    """Returns the requests of each class in each of the last known stretches of about `span_s`, oldest first."""
    end = round((known_until_s(turn) - seen.start_s) / STRETCH_S)
    came = seen.by_class([own.request_class for own in classes.values()])
    return {name: came[name][max(0, end - round(span_s / STRETCH_S)) : end, 0].tolist() for name in classes}


def waiting(turn: LoopTurn) -> Mapping[str, int]:
    """Counts the requests of each class that wait at engines, as agents report now (a class without a report has
    none)."""
    rows = Instance.objects.filter(pool__service=turn.context.service).exclude(state=Instance.State.STOPPED)
    class_of = {str(uid): name for uid, name in rows.values_list("uid", "pool__request_class__name")}
    found: Counter[str] = Counter()
    for agent in agents.states(agents.connect(), turn.context.reporting).values():
        for seen in agent.instances:
            if seen.uid in class_of and seen.waiting is not None:
                found[class_of[seen.uid]] += seen.waiting
    return found
