"""Parts of a device: needs, weights, floors and ceilings of the models on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.fleet.gpu_parts import Share
from core.simulator.policies.muserve.device_parts import Claim, claim, parts
from core.simulator.policies.muserve.device_placement import Placer
from core.simulator.policies.muserve.placement_search import Guide
from tests.unit.core.simulator.policies.test_muserve import MIX, cluster

CLAIMS = st.builds(
    lambda use, weight, floor, more: Claim(use, weight, floor, min(1.0, floor + more)),
    st.floats(0.01, 3.0),
    st.floats(0.1, 10.0),
    st.floats(0.0, 1.0),
    st.floats(0.01, 1.0),
)


def test_each_has_what_it_needs_and_an_equal_part_of_the_rest_without_more_being_said():
    assert parts([Claim(0.2), Claim(0.4)]) == pytest.approx([0.4, 0.6])
    assert parts([Claim(1.0), Claim(3.0)]) == pytest.approx([0.25, 0.75])


def test_the_rest_and_what_is_scarce_go_by_weight():
    assert parts([Claim(0.2, 3.0), Claim(0.4)]) == pytest.approx([0.5, 0.5])
    assert parts([Claim(1.0, 3.0), Claim(3.0)]) == pytest.approx([0.5, 0.5])


def test_a_heavy_model_has_no_more_than_it_needs_while_another_lacks():
    assert parts([Claim(0.5, 9.0), Claim(0.9)]) == pytest.approx([0.5, 0.5])


def test_floors_hold_where_parts_are_scarce_and_ceilings_where_they_are_not():
    assert parts([Claim(0.1, floor=0.5), Claim(2.0)]) == pytest.approx([0.5, 0.5])
    assert parts([Claim(0.1, ceiling=0.25), Claim(0.3)]) == pytest.approx([0.25, 0.75])
    assert parts([Claim(0.1, ceiling=0.25)]) == [0.25]
    assert parts([Claim(0.1, floor=1.0), Claim(0.1, floor=1.0)]) == pytest.approx([0.5, 0.5])


@given(st.lists(CLAIMS, min_size=1, max_size=6))
def test_no_part_is_above_its_ceiling_or_below_its_floor_and_nothing_is_idle_that_one_may_have(claims):
    found = parts(claims)
    promised = sum(own.floor for own in claims)
    assert sum(found) <= 1.0 + 1e-9
    for own, part in zip(claims, found, strict=True):
        assert own.floor / max(1.0, promised) - 1e-9 <= part <= own.ceiling + 1e-9
    assert sum(found) == pytest.approx(min(1.0, sum(own.ceiling for own in claims)))


def test_bounds_are_of_all_replicas_together():
    assert claim(0.2, Share(2.0, min_gpus=1, max_gpus=2), gpus=4) == Claim(0.2, 2.0, 0.25, 0.5)
    assert claim(0.2, Share(min_gpus=8), gpus=4) == Claim(0.2, 1.0, 1.0, 1.0)


def _shared(world, **shares):
    return replace(world, services=tuple(replace(s, share=shares.get(s.name, s.share)) for s in world.services))


def _gpus(world):
    found = Counter()
    for replica in Placer(world, (), 0.99, None).alpaserve().replicas:
        found[replica.spec.name.rsplit("-", 1)[0]] += replica.spec.gpu_share * replica.spec.tp
    return found


def test_no_service_is_placed_on_more_gpus_than_its_ceiling():
    world = cluster({"chat": ("gpt2-large", 3.0, 100.0, 100.0)}, gpus=4)
    assert _gpus(world)["chat"] > 1.0
    assert _gpus(_shared(world, chat=Share(max_gpus=1)))["chat"] == pytest.approx(1.0)


def test_the_heavier_of_two_alike_services_has_the_larger_part():
    world = cluster(MIX, gpus=2)
    equal, heavy = _gpus(world), _gpus(_shared(world, chat=Share(4.0)))
    assert heavy["chat"] > equal["chat"]


def test_requests_count_by_the_weight_of_their_service():
    world = cluster(MIX, gpus=2, e2e_s=60.0)
    chat = [(r.slot.service, r.spec) for r in Placer(world, (), 0.99, None).alpaserve().replicas if r.slot.service == 0]
    equal, heavy = (Guide(_shared(world, chat=Share(w)), 0.99, None).attainment(chat) for w in (1.0, 9.0))
    assert 0.0 < equal < heavy < 1.0
