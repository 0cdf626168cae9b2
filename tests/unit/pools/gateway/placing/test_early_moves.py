"""Streams whose first token is overdue: which move, and which stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pools.gateway.placing.early_moves import EarlyMoves
from pools.gateway.placing.slot import Slot
from tests.unit.pools.gateway.placing.test_hung_engines import Watched


class Late(Watched):
    """Looks ten times a second at two instances, for a service with early moves and a TTFT objective of 2 s."""

    def __init__(self, early_moves: bool = True) -> None:
        super().__init__()
        self.house.fake.policy = msgspec.structs.replace(self.house.fake.policy, early_moves=early_moves)
        self.house.publish()
        self.early = EarlyMoves(self.house.dispatcher, self.house.router)

    def send(self, ttft_s: float | None = 0.2, **fields: Any) -> Slot:
        slot = super().send(ttft_s, **fields)
        slot.call.request.received_s = slot.sent_s
        return slot

    def moved_after(self, seconds: float) -> int:
        """Returns how many have moved when so much time has passed."""
        self.now_s += seconds
        self.early.look(self.house.view.services.values(), self.now_s)
        return self.early.moved


@pytest.mark.parametrize(("ttft_s", "moves_s"), [(0.2, 0.46), (0.6, 1.21)])
async def test_stream_moves_once_its_first_token_is_overdue_by_far(ttft_s: float, moves_s: float) -> None:
    late = Late()
    late.send(ttft_s)
    assert late.moved_after(moves_s - 0.02) == 0
    assert late.moved_after(0.03) == 1
    assert late.moved == 1


async def test_stream_stays_when_the_knob_is_off() -> None:
    late = Late(early_moves=False)
    late.send()
    assert late.moved_after(1.0) == 0


async def test_stream_stays_when_it_cannot_be_in_time_elsewhere() -> None:
    late = Late()
    _, second = late.house.instances
    slot = late.send()
    assert late.moved_after(1.99) == 0, "its prompt takes longer than is left"
    assert late.moved_after(1.0) == 0, "it is late already"
    slot.call.own_limits = replace(slot.call.service.limits, ttft_s=60.0)
    second.health.failed(late.now_s, refused=True)
    assert late.moved_after(1.0) == 0, "the other one is out"
    second.health.worked()
    for _ in range(late.house.view.services[slot.call.service.name].engine_queue):
        second.dispatched(100, stream=True)
    assert late.moved_after(1.0) == 0, "the other one has no room"
    second.started(0, 100)
    assert late.moved_after(1.0) == 1


async def test_stream_stays_when_nothing_is_known_of_it_or_its_tokens_come() -> None:
    late = Late()
    late.send(ttft_s=None)
    late.send(stream=False)
    late.send().started()
    assert late.moved_after(1.0) == 0
