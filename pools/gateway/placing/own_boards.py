"""Takes down what this gateway has at an engine, for the other gateways and for its own decisions.

Nothing compiled is needed: it is published before projections are loaded, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from core.observations.clock_given import pace_limits
from core.observations.limits import due_within_s
from pools.wire import EngineBoard, EnginePaces, GatewayBoards

from ..fleet.instance import Instance
from ..fleet.view import Service
from ..requests.call import Call
from .slot import Pace, Slot, answers_at, slots_at


def published(services: Iterable[Service], instances: Iterable[Instance]) -> GatewayBoards:
    """Returns all that this gateway has at engines whose clocks gateways ask for.

    Args:
        instances: All that are known, those that take nothing new included.
    """
    now_s = time.monotonic()
    by_pool = {pool: service for service in services for pool in service.shares}
    boards: dict[str, EngineBoard] = {}
    paces: dict[str, EnginePaces] = {}
    for instance in instances:
        service = by_pool.get(instance.pool_id)
        if service is None or not instance.slots:
            continue
        if service.policy.by_deadlines:
            paces[instance.uid] = paces_of(service, instance, now_s)
        elif judges(service):
            boards[instance.uid] = board_of(service, instance)
    return GatewayBoards(now_s, time.time(), boards, paces)


def judges(service: Service) -> bool:
    """Says whether gateways judge the batches of the service's engines: to admit, or to ask for a clock."""
    return service.policy.retail or service.policy.admission == "projection"


def board_of(service: Service, instance: Instance) -> EngineBoard:
    """Returns this gateway's board of an engine; its times are by `time.monotonic`."""
    slots = slots_at(instance)
    calls = [slot.call for slot in slots]
    limits_s = [tpot_s for call in calls if (tpot_s := call.limits(service).tpot_s) is not None]
    return EngineBoard(
        answers_at(instance),
        min(limits_s, default=None),
        [slot.sent_s for slot in slots],
        [call.prompt_tokens or 1 for call in calls],
        [call.predicted_tokens or 1 for call in calls],
        [most_tokens(service, call) for call in calls],
        [slot.generated for slot in slots],
        [slot.begun for slot in slots],
        [deadline_s(service, call) for call in calls],
        [call.lost for call in calls],
    )


def most_tokens(service: Service, call: Call) -> int:
    """Returns the tokens of output that a request may generate."""
    room = max(1, service.max_model_len - (call.prompt_tokens or 0))
    most = min(room, service.policy.tuning.throttle_max_tokens)
    return most if call.max_tokens is None else min(most, call.max_tokens)


def deadline_s(service: Service, call: Call) -> float:
    """Returns when a request is to have ended (monotonic); infinite: it has no limit."""
    within_s = due_within_s(call.limits(service), call.predicted_tokens or 1)
    return math.inf if within_s is None else call.request.received_s + within_s


def paces_of(service: Service, instance: Instance, now_s: float) -> EnginePaces:
    """Returns what this gateway has at an engine for a clock by deadlines.

    A prompt whose first byte has not come waits in whole: chunks that are done with are not seen from here.

    Args:
        now_s: Monotonic, as all times.
    """
    prompts: list[tuple[float, int, float, int]] = []
    decodes, context, slack_s, tpot_s = 0, 0, math.inf, math.inf
    for slot in slots_at(instance):
        pace = slot.pace
        if pace is None:
            pace = slot.pace = _pace(service, slot)
        tpot_s = min(tpot_s, pace.tpot_s)
        call = slot.call
        if slot.begun_s is None and (slot.part is None or slot.prompt_tokens):
            first = call.engine_priority if service.policy.engine_priority else None
            prompts.append((slot.sent_s, slot.prompt_tokens or 1, pace.due_s, first or 0))
            continue
        generated = slot.generated
        decodes += 1
        context += (call.prompt_tokens or 1) + generated
        slack_s = min(slack_s, _ahead_s(slot, generated, pace.tpot_s, now_s))
    columns = zip(*prompts, strict=True) if prompts else ((), (), (), ())
    return EnginePaces(decodes, context, slack_s, tpot_s, *(list(column) for column in columns))


def _ahead_s(slot: Slot, generated: int, tpot_s: float, now_s: float) -> float:
    """Returns by how much an answer is ahead of its limit. One that is no stream tells nothing: it is just in time."""
    if slot.meter is None or slot.begun_s is None:
        return 0.0
    return tpot_s * max(0, generated - slot.tokens_before - 1) - (now_s - slot.begun_s)


def _pace(service: Service, slot: Slot) -> Pace:
    """Returns the limits of a call there: the network's round trip is part of every TTFT."""
    call, policy = slot.call, service.policy
    limits = pace_limits(
        call.limits(service), float(call.long_tokens or 1), policy.clock_ttft_share, policy.clock_tpot_share
    )
    due_s = math.inf if limits.ttft_s is None else call.request.received_s + limits.ttft_s - slot.instance.rtt_s
    return Pace(due_s, math.inf if limits.tpot_s is None else limits.tpot_s)
