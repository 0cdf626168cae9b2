"""A request that two instances serve counts once: each part with its own tokens, the second from when it is sent."""

from __future__ import annotations

import pytest

from core.controllers.request.routing import Choice
from pools.gateway.placing.slot import Part, Slot, due_at, slots_at
from tests.unit.pools.gateway.placing.test_dispatch_laws import House

PROMPT, ANSWER = 2000, 400
CUTS = [1500, PROMPT, 2100]


def counts(house: House, n: int) -> tuple[int, int, int]:
    """Returns what routing sees of an instance: its requests, those that wait, and their prompts' tokens."""
    candidate = house.instances[n].candidate()
    return candidate.load, candidate.waiting, candidate.queued_prompt_tokens


def taken(house: House, cut: int, stream: bool = True) -> tuple[Slot, Slot]:
    call = house.call(prompt=PROMPT, predicted=ANSWER, stream=stream)
    choice = Choice("", None, None, None, None, None, False, "")
    one, two = (
        house.dispatcher.take(call, (house.instances[n], choice), Part(cut, PROMPT + ANSWER, second=n == 1))
        for n in (0, 1)
    )
    return one, two


@pytest.mark.parametrize("cut", CUTS)
async def test_parts_have_all_tokens_of_the_request_between_them(cut: int) -> None:
    one, two = (Part(cut, PROMPT + ANSWER, second).tokens(PROMPT, ANSWER) for second in (False, True))
    assert (one[0] + two[0], one[1] + two[1]) == (PROMPT, ANSWER)
    assert sum(one) == cut


@pytest.mark.parametrize("cut", CUTS)
async def test_second_part_counts_from_when_it_is_sent_and_with_its_own_tokens(cut: int) -> None:
    house = House(2)
    first, second = taken(house, cut)
    assert counts(house, 0) == (1, 1, min(cut, PROMPT))
    assert counts(house, 1) == (0, 0, 0)
    assert (slots_at(house.instances[1]), due_at(house.instances[1])) == ([], [second])
    first.started()
    first.end()
    second.arrives()
    assert counts(house, 0) == (0, 0, 0)
    assert counts(house, 1) == (1, 1, max(0, PROMPT - cut))
    assert (slots_at(house.instances[1]), due_at(house.instances[1])) == ([second], [])
    second.started()
    assert counts(house, 1) == (1, 0, 0)
    second.end()
    assert [counts(house, n) for n in (0, 1)] == [(0, 0, 0)] * 2
    assert [i.in_flight for i in house.instances] == [0, 0]


@pytest.mark.parametrize("arrives", [True, False])
async def test_place_that_was_given_back_comes_to_nothing_when_its_part_comes_late(arrives: bool) -> None:
    house = House(2)
    first, second = taken(house, PROMPT)
    if arrives:
        second.arrives()
    for slot in (first, second, second):
        slot.end()
    second.arrives()
    assert [(i.in_flight, i.parts, i.prompts_only, i.unstarted) for i in house.instances] == [(0, 0, 0, 0)] * 2
    assert [counts(house, n) for n in (0, 1)] == [(0, 0, 0)] * 2


async def test_instance_that_left_the_fleet_is_kept_while_a_second_part_is_to_come() -> None:
    house = House(2)
    first, second = taken(house, PROMPT)
    leaving = second.instance
    house.fake.urls = house.fake.urls[:1]
    house.publish()
    house.fake.urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    house.publish()
    assert house.instances[1] is leaving
    first.end()
    second.end()
