"""Tenants have their shares over all gateways: what they use elsewhere counts here."""

from __future__ import annotations

from collections import Counter

from core.algorithms.queue.fair_queue import FairQueue, Waiting
from core.algorithms.queue.queueing import OrderConfig
from pools import wire
from pools.gateway.accounts.use_elsewhere import UseElsewhere

QUEUE = "chat/LL"


def test_what_others_used_is_heard_once_and_from_when_they_are_known() -> None:
    here, there = UseElsewhere(), UseElsewhere()
    there.note_ended("acme", 1_000)
    assert here.hear([there.message(), here.message()]) == ({}, Counter()), "nobody knows when that was"
    there.note_ended("acme", 5)
    there.note_queued(QUEUE, "acme", 7)
    here.note_ended("acme", 100)
    messages = [here.message(), there.message()]
    assert here.hear(messages) == ({QUEUE: Counter(acme=7)}, Counter(acme=5))
    queued, ended = here.hear(messages)
    assert (queued.get(QUEUE, Counter()), ended) == (Counter(), Counter())


def test_a_gateway_that_started_again_begins_at_nothing() -> None:
    here = UseElsewhere()
    here.hear([wire.GatewayUse("old", {}, {"acme": 500})])
    here.hear([wire.GatewayUse("new", {}, {"acme": 20})])
    assert here.hear([wire.GatewayUse("new", {}, {"acme": 30})])[1] == Counter(acme=10)


def served(*, sharing: bool) -> Counter[str]:
    """Twelve gateways serve 100 requests each, one a turn. `wide` waits at all of them, `narrow` at the first alone."""
    queues = [FairQueue[int](OrderConfig(), {"wide": 1.0, "narrow": 1.0}) for _ in range(12)]
    used, names, found = [UseElsewhere() for _ in queues], {}, Counter[str]()
    for number in range(12 * 300):
        tenant = "narrow" if number % 12 == 0 and number < 12 * 150 else "wide"
        names[number] = tenant
        queues[number % 12].push(number, Waiting(float(number), 5, 5, 1.0, 0.0, tenant))
    for turn in range(100):
        for queue, own in zip(queues, used, strict=True):
            item = queue.pop()
            assert item is not None
            found[names[item]] += 10
            own.note_queued(QUEUE, names[item], 10)
        if sharing and turn % 2:
            messages = [own.message() for own in used]
            for queue, own in zip(queues, used, strict=True):
                for tenant, tokens in own.hear(messages)[0].get(QUEUE, {}).items():
                    queue.charge(tenant, tokens)
    return found


def test_a_tenant_of_one_gateway_has_its_share_beside_one_of_all_gateways() -> None:
    alone, together = served(sharing=False), served(sharing=True)
    assert alone["narrow"] == 500, "half of its gateway, a twenty-fourth of all"
    assert together["narrow"] >= 970, "all of its gateway but the first turns: still no more than its half of all"


def test_who_does_not_wait_here_is_charged_nothing() -> None:
    queue = FairQueue[int](OrderConfig(), {"a": 1.0, "b": 1.0})
    queue.charge("a", 10_000)
    for number, tenant in enumerate("abab"):
        queue.push(number, Waiting(float(number), 5, 5, 1.0, 0.0, tenant))
    assert [queue.pop() for _ in range(2)] == [0, 1]
    queue.charge("a", 10)
    assert queue.pop() == 3
