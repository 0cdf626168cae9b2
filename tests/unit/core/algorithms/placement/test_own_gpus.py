"""Models on GPUs of their own: groups of one size, replicas on the fewest GPUs, and what nodes have room for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.fleet.gpu_parts import Share
from core.algorithms.placement.own_gpus import ModelLoad, attainment, fit, gpus_by_service, in_groups, on_fewest, room
from core.types import Mode

GPU = "A100-80GB"
SIZES = (8, 4, 2, 1)


def model(name: str, rps: float, rate: float, least: int = 1, sites: tuple[str, ...] = ("a",)) -> ModelLoad:
    """Carries `rate` for each GPU, on at least so many."""
    carries = {Mode(GPU, tp): rate * tp if tp >= least else 0.0 for tp in SIZES}
    return ModelLoad(name, rps, carries, frozenset(sites))


def test_smallest_groups_are_taken_when_several_sizes_serve_everybody() -> None:
    found = in_groups({("a", GPU, 8): 1}, [model("m", 2.0, 1.0)], SIZES)
    assert found == {("a", "m", Mode(GPU, 1)): 2}


def test_groups_are_as_large_as_the_largest_model_needs() -> None:
    own = [model("small", 1.0, 1.0), model("large", 1.0, 1.0, least=4)]
    groups = in_groups({("a", GPU, 8): 1}, own, SIZES)
    assert groups == {("a", "small", Mode(GPU, 4)): 1, ("a", "large", Mode(GPU, 4)): 1}
    assert on_fewest(groups, own, None) == {("a", "small", Mode(GPU, 1)): 1, ("a", "large", Mode(GPU, 4)): 1}


def test_model_has_no_replica_when_it_needs_more_gpus_than_it_may_have() -> None:
    own = [model("large", 1.0, 1.0, least=4)]
    groups = in_groups({("a", GPU, 8): 1}, own, SIZES)
    assert on_fewest(groups, own, max_devices=2) == {}


def test_model_stays_at_its_sites() -> None:
    own = [model("m", 50.0, 1.0, sites=("b",))]
    nodes = {("a", GPU, 8): 3, ("b", GPU, 8): 1}
    assert {site for site, _, _ in in_groups(nodes, own, SIZES)} == {"b"}
    assert {site for site, _ in room(nodes, {}, own[0])} == {"b"}


@pytest.mark.parametrize(
    ("share", "gpus"),
    [(Share(), 4), (Share(weight=3.0), 6), (Share(weight=0.1), 1), (Share(min_gpus=6), 6), (Share(max_gpus=2), 2)],
)
def test_groups_that_are_too_few_go_by_weight_floor_and_ceiling(share: Share, gpus: int) -> None:
    own = [
        replace(model("m", 50.0, 1.0), service="own", share=share),
        replace(model("n", 50.0, 1.0), service="other"),
    ]
    found = in_groups({("a", GPU, 8): 1}, own, (1,))
    assert gpus_by_service(found, own)["own"] == gpus
    assert gpus_by_service(found, own).total() == 8


def test_no_model_is_without_a_group_while_another_takes_several() -> None:
    own = [model("large", 50.0, 1.0), model("small", 0.01, 1.0)]
    assert in_groups({("a", GPU, 2): 1}, own, (1,)) == {("a", name, Mode(GPU, 1)): 1 for name in ("large", "small")}


def test_room_is_within_one_node() -> None:
    two = {("a", GPU, 4): 2}
    assert not fit(two, {("a", "m", Mode(GPU, 8)): 1})
    large = model("m", 1.0, 1.0, least=4)
    assert room(two, {("a", "m", Mode(GPU, 2)): 1}, large) == [("a", Mode(GPU, 4))]
    assert room(two, {("a", "m", Mode(GPU, 4)): 1, ("a", "n", Mode(GPU, 1)): 1}, large) == []


MODELS = st.lists(
    st.tuples(st.floats(0.1, 30.0), st.floats(0.1, 3.0), st.sampled_from((1, 2, 4))), min_size=1, max_size=4
)


@given(MODELS, st.integers(1, 3), st.sampled_from((2, 4, 8)))
def test_placements_fit_and_mu_serves_takes_no_more_gpus(drawn, nodes, gpus) -> None:
    own = [model(f"m{n}", rps, rate, least) for n, (rps, rate, least) in enumerate(drawn)]
    fleet = {("a", GPU, gpus): nodes}
    groups = in_groups(fleet, own, SIZES)
    fewest = on_fewest(groups, own, None)
    for found in (groups, fewest):
        assert fit(fleet, found)
        assert 0.0 <= attainment(found, own) <= 1.0 + 1e-9
    taken = [sum(mode.tp * n for (_, _, mode), n in found.items()) for found in (groups, fewest)]
    assert taken[1] <= taken[0]
