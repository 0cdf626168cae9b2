"""mu-Serve's placement: models to groups by a guiding simulation, partitions to devices by like sensitivity."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.placement.model_placement import (
    GroupPlacement,
    PlacementConfig,
    equal_groups,
    place,
    place_partitions,
    select_groups,
    select_models,
)
from core.algorithms.placement.operator_partitions import OperatorGroup, clusters, stages
from core.algorithms.placement.sensitivity import Operator, OperatorKind, operators
from core.engine.engine_model import engine_model
from core.engine.iteration import Totals


def part(model: str, score: float, memory: float = 1.0, name: str = "", latency_s: float = 1.0) -> OperatorGroup:
    return OperatorGroup(
        model, name or f"{model}@{score}", (Operator("o", OperatorKind.MLP, score, latency_s, memory),)
    )


def names(found: tuple[OperatorGroup, ...]) -> set[str]:
    return {partition.name for partition in found}


# -- Algorithm 2 -----------------------------------------------------------------------------------


def test_partitions_of_like_sensitivity_share_a_device_when_models_mix() -> None:
    models = [[part("a", 0.1), part("a", 0.9)], [part("b", 0.85), part("b", 0.15)]]
    found = place_partitions({"g0": 4.0, "g1": 4.0}, models, PlacementConfig(max_devices=2))
    assert {frozenset(names(p)) for p in found.partitions.values()} == {
        frozenset({"a@0.1", "b@0.15"}),
        frozenset({"a@0.9", "b@0.85"}),
    }
    assert min(max(p.sensitivity for p in own) for own in found.partitions.values()) == 0.15  # this clock can be low
    assert found.unplaced == ()


def test_similarity_is_to_the_weighted_mean_when_a_device_holds_several() -> None:
    """d at 0.25 is 0.15 from a; b (0.38 for 9 s) and c (0.5 for 1 s) are at 0.392 by latency, at 0.44 by count."""
    models = [[part("a", 0.1)], [part("b", 0.38, latency_s=9.0)], [part("c", 0.5)], [part("d", 0.25)]]
    config = PlacementConfig(max_devices=1, spread=0.15)
    found = place_partitions({"g0": 9.0, "g1": 9.0}, models, config)
    placed = {p.model: device for device, all_of_it in found.partitions.items() for p in all_of_it}
    assert placed["a"] != placed["b"] == placed["c"] == placed["d"]


def test_model_stays_on_its_devices_when_it_has_as_many_as_it_may() -> None:
    parts = [part("a", 0.1), part("a", 0.5), part("a", 0.52), part("a", 0.9)]
    found = place_partitions({f"g{k}": 9.0 for k in range(4)}, [parts], PlacementConfig(max_devices=2))
    assert len(found.devices_of("a")) == 2
    several = [part("a", 0.5, name="x"), part("a", 0.5, name="y"), part("a", 0.5, name="z")]
    found = place_partitions({"g0": 9.0, "g1": 9.0}, [several], PlacementConfig(max_devices=1))
    assert len(found.devices_of("a")) == 1  # distinct devices count, not partitions
    assert found.unplaced == ()


def test_partition_goes_elsewhere_when_the_most_similar_device_is_full() -> None:
    models = [[part("a", 0.1, 3.0)], [part("b", 0.1, 3.0)], [part("c", 0.12, 2.0)]]
    found = place_partitions({"g0": 4.0, "g1": 5.0}, models, PlacementConfig(max_devices=1))
    assert found.devices_of("c") == {"g1"}
    assert found.unplaced == ()


def test_model_is_reported_as_unplaced_when_no_device_has_room() -> None:
    models = [[part("a", 0.1), part("a", 0.2, 99.0)], [part("b", 0.3)]]
    found = place_partitions({"g0": 4.0}, models, PlacementConfig(max_devices=1))
    assert found.unplaced == ("a",)  # whole or not at all
    assert [p.model for p in found.partitions["g0"]] == ["b"]


def test_model_is_tried_by_size_when_the_most_similar_device_is_too_small_for_all_of_it() -> None:
    models = [[part("a", 0.1, 1.0)], [part("b", 0.1, 2.0), part("b", 0.2, 3.0)]]
    found = place_partitions({"g0": 4.0, "g1": 6.0}, models, PlacementConfig(max_devices=1))
    assert found.devices_of("b") == {"g1"}


@settings(deadline=None, max_examples=120)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 5)), min_size=1, max_size=4), min_size=1, max_size=5
    ),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(1, 3),
    st.floats(0.0, 0.5),
)
def test_memory_and_cap_hold_when_models_are_any(
    models: list[list[tuple[float, int]]], memory: list[int], cap: int, spread: float
) -> None:
    devices = {f"g{k}": float(size) for k, size in enumerate(memory)}
    cut = [
        [part(f"m{k}", score, held, f"m{k}.{j}") for j, (score, held) in enumerate(model)]
        for k, model in enumerate(models)
    ]
    found = place_partitions(devices, cut, PlacementConfig(cap, spread))
    for device, placed in found.partitions.items():
        assert sum(p.memory_bytes for p in placed) <= devices[device]
    placed_names = [p.name for placed in found.partitions.values() for p in placed]
    expected = [p.name for model in cut for p in model if p.model not in found.unplaced]
    assert sorted(placed_names) == sorted(expected)
    for k in range(len(models)):
        assert len(found.devices_of(f"m{k}")) <= cap


def test_insensitive_partitions_are_apart_from_sensitive_ones_when_real_models_are_cut() -> None:
    """A model that prefills and one that decodes, two stages each on four A100: devices differ in their scores."""
    prefill = clusters(operators(engine_model("Llama2-13B", "A100-80GB", 1), Totals.plain(2048, 0, 0)), 0.15)
    decode = clusters(operators(engine_model("Llama2-13B", "A100-80GB", 1), Totals(0, 0, 0, 0, 8, 4000.0)), 0.15)
    cut = [stages("p", prefill, 2), stages("d", decode, 2)]
    assert cut[0] is not None
    assert cut[1] is not None
    found = place_partitions(dict.fromkeys(("g0", "g1", "g2", "g3"), 80e9), cut, PlacementConfig(2))
    assert not found.devices_of("p") & found.devices_of("d")


# -- models to groups ------------------------------------------------------------------------------

RATES = {"a": 5.0, "b": 3.0, "c": 1.0}
SIZES = {"a": 2.0, "b": 1.0, "c": 1.0}


def served(placement: GroupPlacement) -> float:
    """Each device carries 2 requests a second, shared evenly by a group's models."""
    carried = 0.0
    for model, rate in RATES.items():
        capacity = sum(
            2.0 * len(group) / len(models)
            for group, models in zip(placement.groups, placement.models, strict=True)
            if model in models
        )
        carried += min(rate, capacity)
    return carried / sum(RATES.values())


def brute_force(groups: tuple[tuple[str, ...], ...], device_bytes: float) -> float:
    subsets = [frozenset(s) for n in range(4) for s in itertools.combinations(RATES, n)]
    options = (
        GroupPlacement(groups, chosen)
        for chosen in itertools.product(subsets, repeat=len(groups))
        if all(sum(SIZES[m] for m in s) <= len(g) * device_bytes for s, g in zip(chosen, groups, strict=True))
    )
    return max(served(option) for option in options)


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("device_bytes", [1.0, 2.0, 4.0])
def test_greedy_is_near_the_best_placement_when_all_are_tried(devices: int, device_bytes: float) -> None:
    names_ = tuple(f"g{k}" for k in range(devices))
    found = select_groups(names_, device_bytes, SIZES, served)
    best = max(brute_force(groups, device_bytes) for groups in equal_groups(names_))
    assert 0.85 * best <= found.attainment <= best
    assert served(found.placement) == found.attainment
    for group, models in zip(found.placement.groups, found.placement.models, strict=True):
        assert sum(SIZES[m] for m in models) <= len(group) * device_bytes


def test_first_choice_is_what_lifts_attainment_most_when_there_is_room_for_one() -> None:
    found = select_models([("g0", "g1")], 1.0, SIZES, served)
    assert found.placement.models == (frozenset({"a"}),)


def test_steps_without_gain_are_taken_when_two_models_only_help_together() -> None:
    def together(placement: GroupPlacement) -> float:
        return 0.9 if {"b", "c"} <= placement.models[0] else 0.1

    found = select_models([("g0",)], 2.0, {"b": 1.0, "c": 1.0}, together)
    assert found.attainment == 0.9


def test_search_ends_when_every_request_is_in_time() -> None:
    found = select_models([("g0",), ("g1",)], 9.0, SIZES, lambda placement: 1.0)
    assert (found.simulations, sum(map(len, found.placement.models))) == (6, 1)


def test_groups_double_in_size_when_enumerated() -> None:
    assert [[len(group) for group in groups] for groups in equal_groups("abcdef")] == [
        [1] * 6,
        [2, 2, 2],
        [4, 2],
        [6],
    ]
    assert equal_groups(("x",)) == ((("x",),),)


def test_both_steps_join_when_a_selection_is_placed() -> None:
    chosen = GroupPlacement((("g0", "g1"), ("g2",)), (frozenset({"a"}), frozenset({"a", "b"})))

    def cut(model: str, devices: int) -> list[OperatorGroup]:
        return [part(model, 0.1 + 0.7 * k, 1.0, f"{model}[{k}/{devices}]") for k in range(devices)]

    first, second = place(chosen, 2.0, cut, PlacementConfig(max_devices=2))
    assert {device: names(p) for device, p in first.partitions.items()} == {"g0": {"a[0/2]"}, "g1": {"a[1/2]"}}
    assert names(second.partitions["g2"]) == {"a[0/1]", "b[0/1]"}
