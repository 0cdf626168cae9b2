"""Requests go where they take least energy within their limits, as gateways send them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.simulator.kernel.commands import DRAINING, SERVING, FleetView, RequestView
from core.simulator.policies import build, read_policy
from core.simulator.policies.energy_router import EnergyRouter
from core.types import Limits
from tests.unit.core.simulator.policies.worlds import templates, world

LIMITS = Limits(ttft_s=1.0, tpot_s=0.1)
REQUEST = RequestView(0, 0.0, 500, 0, 100, 0.0, cell=0, service=0, tenant=0)


def view(pools=(0, 0), mhz=(1980.0, 1200.0), **arrays) -> FleetView:
    """Instances of one kind, which serve and have nothing to do."""
    (spec,) = templates(["east"])
    n, nothing = len(pools), np.zeros(len(pools), np.int64)
    never = np.full(n, np.nan)
    found = FleetView(
        now_s=0.0,
        instances=tuple(replace(spec, name=f"i{k}") for k in range(n)),
        state=np.full(n, SERVING),
        pool=np.array(pools),
        mhz=np.array(mhz),
        running=nothing,
        waiting=nothing,
        kv_used_tokens=nothing,
        ttft_s=never,
        tpot_s=never,
        e2e_s=never,
        cell_pool=(0, 1, 2),
        unplaced=np.zeros(3, np.int64),
        arrived=np.zeros((3, 0, 3), np.int64),
    )
    return replace(found, **{key: np.array(value) for key, value in arrays.items()})


@pytest.fixture
def router():
    """Two classes of one service, and another service."""
    return EnergyRouter([LIMITS] * 3, [[0, 1], [2]], {"east": 1.2})


def slot(placement) -> int | None:
    return None if placement is None else placement.instance


def test_the_instance_of_least_energy_is_taken_within_the_limits(router):
    assert slot(router.place(REQUEST, view())) == 1  # the slower clock
    assert slot(router.place(REQUEST, view(waiting=(0, 400)))) == 0


def test_instances_that_drain_or_have_no_room_get_nothing(router):
    assert slot(router.place(REQUEST, view(state=(SERVING, DRAINING)))) == 0
    assert router.place(REQUEST, view(state=(DRAINING, DRAINING))) is None
    assert router.place(replace(REQUEST, prompt_tokens=10**9), view()) is None


def test_a_request_spills_to_the_next_class_of_its_service_alone(router):
    assert slot(router.place(REQUEST, view(pools=(1, 2)))) == 0
    assert slot(router.place(REQUEST, view(pools=(0, 1), waiting=(400, 0)))) == 1
    assert slot(router.place(replace(REQUEST, cell=2, service=1), view(pools=(1, 2)))) == 1
    assert router.place(REQUEST, view(pools=(2, 2))) is None


def test_loops_of_epochs_route_by_it_when_the_knob_says_so():
    plan = build(read_policy({"name": "greenserve_epochs"}), world({"east": 16}, classes=("short", "long")))
    assert isinstance(plan.router, EnergyRouter)
    assert {pool.routing for pool in plan.pools} == {"least_loaded"}
    assert build(read_policy({"name": "freesh"}), world({"east": 16})).router is None
