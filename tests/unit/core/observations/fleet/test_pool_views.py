"""Pools share their class's demand by what their planned workers carry, and see the modes of their site."""

import pytest

from core.observations.demand.class_view import ClassView
from core.observations.fleet.pool_views import PoolFacts, pool_views
from core.types import ClassDemand, Limits, Mode, ModeProfile, PoolKey, Source

TP2, TP4 = Mode("A100-80GB", 2), Mode("A100-80GB", 4)
PROFILES = {mode: ModeProfile(mode.tp / 2.0, 500.0, 0.1, 0.02, 3.0, Source.MODELLED) for mode in (TP2, TP4)}
ALL = ClassView(ClassDemand("ALL", (9.0, 6.0), Limits(), 500.0, 100.0), None, PROFILES, "")
EAST, WEST, NORTH = (PoolKey(site, "ALL") for site in ("east", "west", "north"))
BOTH = (TP2, TP4)


def pool(key, planned, modes=BOTH, workers=None, gpus=8):
    return PoolFacts(key, {"A100-80GB": gpus}, workers or {}, planned, modes)


def seen(pools, deciding=None, freeze_tp=False):
    keys = {own.key for own in pools} if deciding is None else deciding
    return {own.key: own for own in pool_views(pools, {"ALL": ALL}, keys, freeze_tp=freeze_tp)}


def test_demand_is_shared_by_what_planned_workers_carry():
    found = seen([pool(WEST, {TP4: 1}), pool(EAST, {TP2: 1})])
    assert list(found) == [EAST, WEST]
    assert found[EAST].demand.demand_rps == pytest.approx((3.0, 2.0))
    assert found[WEST].demand.demand_rps == pytest.approx((6.0, 4.0))


def test_demand_is_shared_by_gpus_when_nothing_is_planned():
    found = seen([pool(EAST, {}, gpus=6), pool(WEST, {}, gpus=3)])
    assert [own.demand.demand_rps[0] for own in found.values()] == pytest.approx([6.0, 3.0])


def test_pools_that_are_not_decided_for_keep_their_share():
    found = seen([pool(EAST, {TP2: 1}), pool(WEST, {TP2: 2}), pool(NORTH, {}, gpus=0)], deciding=[EAST, NORTH])
    assert list(found) == [EAST]
    assert found[EAST].demand.demand_rps == pytest.approx((3.0, 2.0))


def test_modes_are_those_of_the_site_and_those_that_stand():
    found = seen([pool(EAST, {}, modes=[TP2]), pool(WEST, {}, modes=[TP2], workers={TP4: 1})])
    assert [set(own.profiles) for own in found.values()] == [{TP2}, {TP2, TP4}]
    found = seen([pool(EAST, {}), pool(WEST, {}, workers={TP4: 1})], freeze_tp=True)
    assert [set(own.profiles) for own in found.values()] == [{TP2, TP4}, {TP4}]


def test_class_without_gpus_is_demand_of_the_next_larger_one():
    names = ("SMALL", "MIDDLE", "LARGE")
    classes = {
        name: ClassView(ClassDemand(name, (rps, 1.0), Limits(), 500.0, 100.0), None, PROFILES, "")
        for name, rps in zip(names, (1.0, 2.0, 4.0), strict=True)
    }
    large, middle, small = (PoolKey("east", name) for name in reversed(names))
    for pools, demand in (
        ([pool(large, {TP2: 1}), pool(middle, {TP2: 1})], {large: (4.0, 1.0), middle: (3.0, 2.0)}),
        ([pool(large, {TP2: 1}), pool(middle, {}, gpus=0)], {large: (7.0, 3.0)}),
        ([pool(small, {TP2: 1})], {small: (7.0, 3.0)}),
    ):
        found = pool_views(pools, classes, [own.key for own in pools], freeze_tp=False)
        assert {own.key: own.demand.demand_rps for own in found} == demand
