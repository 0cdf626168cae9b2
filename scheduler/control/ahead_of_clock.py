"""Gives periods back that were run ahead of the clock: it was set forward and put right again, or set back.

An epoch is unique by its period. Where the clock has come before periods that were run already, none of them would run
again until it has caught up.
"""

from __future__ import annotations

import math
from datetime import datetime

from django.db import transaction
from django.db.models import F, Max, Q

from core.types import Loop
from pools import clock_repairs
from pools.models import Service
from scheduler.control import loop_times, service_policy
from scheduler.control.loop_turns import META
from scheduler.control.steps.policy_steps import UNKNOWN_UNTIL
from scheduler.models import ControllerState, Epoch, SlowLoop

_NOT_PLAN = (META, UNKNOWN_UNTIL)  # in carbon's state


@transaction.atomic
def give_back(service: Service, now: datetime) -> bool:
    """Makes the periods ahead of `now` free again; says whether there were any, so that all loops run at once.

    The epochs stay on record with their times, as epochs out of turn. The states of scale and shard are forgotten, and
    of carbon's all but the plan in force: holds and waiting times in them end ahead of the clock too.
    """
    ahead = Epoch.objects.filter(_periods_after(service, now + clock_repairs.AHEAD), service=service)
    furthest = ahead.aggregate(furthest=Max("due_at"))["furthest"]
    if furthest is None:
        return False
    rows = ahead.update(index=-F("pk"))
    if not rows:  # another process was first
        return False
    for state in ControllerState.objects.select_for_update().filter(service=service, kind__in=SlowLoop.values):
        plan = {} if state.kind != Loop.CARBON else state.value
        state.value = {name: value for name, value in plan.items() if name not in _NOT_PLAN}
        state.version += 1
        state.save(update_fields=["value", "version", "updated_at"])
    clock_repairs.note(f"epochs of {service}", rows, furthest, now)
    return True


def _periods_after(service: Service, moment: datetime) -> Q:
    """Returns a condition for epochs of periods that begin after `moment`, by the unique index of epochs."""
    found = Q()
    for policy in (service_policy.deciding(service), service.configured_policy()):
        times = loop_times.times(policy.knobs)
        for loop in (Loop.CARBON, Loop.SCALE, Loop.SHARD):
            period_s = times.of(loop)
            last = math.floor(moment.timestamp() / period_s)
            found |= Q(kind=loop.value, period_s=period_s, index__gt=last)
    return found
