"""Requests that their class hands on to the next larger one."""

from __future__ import annotations

import pytest

from core.types import Limits
from pools import wire
from pools.gateway.fleet.view import Service
from tests.fakes.fleet import MODEL
from tests.unit.pools.gateway.placing.test_class_limits import Ladder, busy, house_of, late_by
from tests.unit.pools.gateway.placing.test_dispatch_laws import House


def house_with(share: float, *request_classes: str, **policy: object) -> House:
    """SS hands on this share to SL."""
    house = house_of(*request_classes, strict=(), **policy)
    house.fake.hands_on = {"SS": share}
    house.publish()
    return house


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
async def test_share_goes_to_the_next_class_while_both_keep_the_limits(share: float) -> None:
    house = house_with(share, "SS", "SL")
    went = []
    for _ in range(100):
        guest = await house.come(house.call(class_name="SS"))
        assert guest.slot is not None
        went.append(guest.slot.instance.request_class)
        assert guest.slot.choice.reason == "least energy within the limits", "it is no spill"
        guest.slot.end()
    assert went.count("SL") == round(100 * share)
    assert all("SL" in went[n : n + 5] for n in range(0, 100, 5)) == (share > 0.0), "evenly"
    await house.clear()


async def test_call_keeps_its_turn_while_it_waits_and_when_it_is_tried_again() -> None:
    house = house_with(0.5, "SS", "SL")
    service = house.view.services[MODEL]
    first, second = (house.call(class_name="SS") for _ in range(2))
    ranks = [house.dispatcher.request_of(service, call).class_rank for call in (first, first, second, first, second)]
    assert ranks == [0, 0, 1, 0, 1]


async def test_call_keeps_the_limits_of_its_own_class_where_it_was_handed_on() -> None:
    house = house_with(1.0, "SS", "SL")
    house.fake.limits = {"SS": wire.LatencyLimits(0.25, 0.1, 60.0), "SL": wire.LatencyLimits(1.0, 0.1, 60.0)}
    house.publish()
    request = house.dispatcher.request_of(house.view.services[MODEL], house.call(class_name="SS"))
    assert (request.class_rank, request.limits) == (1, Limits(0.25, 0.1, 60.0))
    _, larger = house.instances
    busy(larger)
    guest = await house.come(house.call(class_name="SS"))
    assert guest.slot is not None
    assert guest.slot.instance.request_class == "SS", "where it was handed on it would be late"
    await house.clear()


async def test_ladder_looks_at_those_that_wait_where_they_were_handed_on() -> None:
    house = house_with(1.0, "SS", "SL", emergencies=True, engine_queue=1)
    await late_by(house, "SL", 1)
    await house.come(house.call(class_name="SS", prompt=1))  # fills what SL would spill to
    guest = await house.come(house.call(class_name="SS", prompt=16000))
    assert house.waiting == [guest]
    assert Ladder(house).ramped() == {"SL"}
    guest.task.cancel()
    await house.clear()


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([("S", 0, 0.0), ("L", 1, 0.0)], ()),
        ([("S", 0, 0.3), ("L", 1, 0.0)], (0.3, 0.0)),
        ([("L", 5, 0.0), ("S", 2, 0.3)], (1.0, 1.0, 0.3, 1.0, 1.0, 0.0)),
        ([], ()),
    ],
)
def test_ranks_without_a_class_are_passed(classes: list[tuple[str, int, float]], expected: tuple[float, ...]) -> None:
    cells = [wire.FleetClass(name, rank, 0, None, 0, None, None, share) for name, rank, share in classes]
    entry = wire.FleetService("chat", "M", "e", 10, wire.LatencyLimits(), "p", cells, [])
    assert Service(entry).hands_on == expected
