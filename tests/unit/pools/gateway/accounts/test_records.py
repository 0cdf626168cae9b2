"""Rows of requests."""

from __future__ import annotations

import random
from typing import cast

import pytest

from core.controllers.request.routing import Choice
from core.types import Limits
from pools import wire
from pools.gateway.accounts.records import row_of
from pools.gateway.classify.classified import Classified
from pools.gateway.fleet.instance import Instance
from pools.gateway.fleet.view import Service
from pools.gateway.http.request import Request
from pools.gateway.placing.instance_choice import WarmPrefixes
from pools.gateway.requests.call import Call, Ending
from pools.gateway.requests.endpoint import CHAT
from pools.gateway.requests.sse import SseMeter, Usage
from tests.fakes.fleet import FakeFleet

FLEET = FakeFleet(["http://127.0.0.1:1"])
TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def ended() -> tuple[Call, Ending]:
    """A call of which every figure is another one."""
    (entry, *_), (key, *_) = FLEET.fleet().services, FLEET.fleet().keys
    request = Request(b"POST", CHAT.path, {b"traceparent": TRACEPARENT}, b"{}", True)
    request.received_s, request.started_at_s = 100.0, 1_700_000_000.0
    call = Call(
        request, Service(entry), key, CHAT, stream=True, lost=True, queue_s=0.25, max_tokens=77, adapter="legal"
    )
    call.classified = Classified(301, False, 55, "history", "LS", 220, class_probability=0.7)
    call.own_limits = Limits(0.5, 0.05, None)
    meter = SseMeter(window_end_s=104.0, strip_usage=False)
    for at_s in (102.0, 103.0, 105.0):
        meter.feed(b'data: {"id":"c","choices":[{"text":"a"}]}\n\n', at_s)
    ending = Ending("ok", 200, "none to speak of", 106.0, 2)
    ending.instance = Instance(FLEET.instance(FLEET.urls[0], 0), entry.pools[3], 3, 0.0)
    ending.choice = Choice("uid", 12.5, 0.1, 0.02, 1.5, 2.1, True, "least energy")
    ending.meter, ending.usage = meter, Usage(300, 3)
    return call, ending


def test_row_has_each_figure_in_its_place() -> None:
    call, ending = ended()
    instance = cast(Instance, ending.instance)
    assert row_of(call, ending, "LL") == wire.RequestRow(
        request_id=call.request_id,
        started_at_s=1_700_000_000.0,
        service=call.service.name,
        tenant_id=call.key.tenant_id,
        key_id=call.key.key_id,
        endpoint="chat",
        stream=True,
        status="ok",
        http_status=200,
        prompt_tokens=300,
        output_tokens=3,
        tokens_source="usage",
        predicted_output_tokens=55,
        prediction_source="history",
        max_tokens=77,
        request_class="LS",
        actual_class="LL",
        pool_id=instance.pool_id,
        instance_uid=instance.uid,
        ttft_s=2.0,
        tpot_s=1.5,
        itl_max_s=2.0,
        e2e_s=6.0,
        window_s=2.1,
        timely_tokens=2,
        predicted_energy_j=12.5,
        queue_s=0.25,
        lost=True,
        own_ttft_s=0.5,
        own_tpot_s=0.05,
        attempts=2,
        route_reason="least energy",
        error="none to speak of",
        traceparent=TRACEPARENT.decode(),
        adapter="legal",
        class_probability=0.7,
    )


@pytest.mark.parametrize("sent", [b"00-" + b"\xff" * 52, b"00-0af7-b7ad-01", b""])
def test_row_has_no_traceparent_when_what_was_sent_cannot_be_one(sent) -> None:
    call, ending = ended()
    call.request.headers[b"traceparent"] = sent
    assert row_of(call, ending).traceparent is None


def test_row_leaves_open_what_is_not_known() -> None:
    call, _ = ended()
    call.classified = call.own_limits = None
    row = row_of(call, Ending())
    unknown = (row.prompt_tokens, row.predicted_output_tokens, row.request_class, row.pool_id, row.ttft_s, row.e2e_s)
    assert unknown == (None,) * 6
    assert (row.status, row.attempts, row.route_reason) == ("upstream_error", 0, "")


# -- where beginnings of prompts were sent ---------------------------------------------------------

BLOCK = WarmPrefixes.BLOCK_BYTES


def text(seed: int, blocks: int) -> bytes:
    return random.Random(seed).randbytes(blocks * BLOCK)


def test_prompt_goes_where_its_longest_known_beginning_went() -> None:
    warm, shared = WarmPrefixes(), text(0, 2)
    for uid, own in (("a", text(1, 3)), ("b", text(2, 3))):
        for _ in range(4):  # one block more is known of it each time
            warm.note(warm.find("service", shared + own)[1], uid)
    assert warm.find("service", shared + text(1, 3) + b"more")[0] == "a"
    assert warm.find("service", shared + text(2, 1))[0] == "b"
    assert warm.find("service", shared + text(3, 1))[0] == "b", "the last that shared the beginning"
    assert warm.find("other service", shared)[0] is None


def test_prompts_take_one_entry_each_when_they_share_nothing() -> None:
    warm = WarmPrefixes()
    for seed in range(20):
        uid, beginnings = warm.find("service", text(seed, 8))
        assert (uid, len(beginnings)) == (None, 1)
        warm.note(beginnings, "a")


def test_nothing_is_known_of_prompts_below_a_block() -> None:
    assert WarmPrefixes().find("service", text(0, 1)[:-1]) == (None, [])


def test_beginnings_longest_unused_are_forgotten_when_there_are_too_many() -> None:
    warm = WarmPrefixes()
    warm.KEPT = 3
    for seed in (0, 1, 2, 0, 3):
        warm.note(warm.find("service", text(seed, 1))[1], f"uid-{seed}")
    assert [warm.find("service", text(seed, 1))[0] for seed in range(4)] == ["uid-0", None, "uid-2", "uid-3"]
