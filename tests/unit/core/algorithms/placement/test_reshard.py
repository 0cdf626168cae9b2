"""The re-shard plan: table VI of DynamoLLM cell by cell, and least volume and time against trying everything."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.placement.reshard import EIGHTHS, ReshardPlan, even, outlook, plan
from core.engine.overheads import TABLE_VI, weight_bytes
from tests.unit.laws import examples

GB = 1e9
LLAMA, ROOM = weight_bytes("Llama2-70B"), 0.9 * 80e9 - 2e9


def side_by_side(layout: tuple[int, ...]) -> list[tuple[int, ...]]:
    places, at = [], 0
    for tp in layout:
        places.append(tuple(range(at, at + tp)))
        at += tp
    return places


def shard(rank: int, tp: int, blocks: int) -> set[int]:
    size = blocks // tp
    return set(range(rank * size, (rank + 1) * size))


def holdings(instances: list[tuple[int, ...]] | tuple[tuple[int, ...], ...], blocks: int) -> dict[int, set[int]]:
    return {gpu: shard(rank, len(own), blocks) for own in instances for rank, gpu in enumerate(own)}


def moved(found: ReshardPlan) -> float:
    """The volume, in T."""
    return sum(len(t.blocks) for t in found.transfers) * EIGHTHS / found.block_count


def check(found: ReshardPlan, current: list[tuple[int, ...]], target: tuple[int, ...]) -> None:
    """Every GPU ends up with its whole shard, and nobody sends what it has not."""
    have, want = holdings(current, found.block_count), holdings(found.instances, found.block_count)
    assert tuple(len(own) for own in found.instances) == target
    assert len(want) == sum(target)
    got: dict[int, list[int]] = {gpu: [] for gpu in want}
    for transfer in found.transfers:
        assert transfer.source != transfer.target
        assert set(transfer.blocks) <= have[transfer.source]
        got[transfer.target] += transfer.blocks
    for gpu, blocks in want.items():
        assert sorted(got[gpu]) == sorted(blocks - have.get(gpu, set()))


@pytest.mark.parametrize("cell", list(TABLE_VI), ids=lambda cell: f"{cell[0]}to{cell[1]}")
def test_plan_takes_the_published_time_when_table_vi_has_the_cell(cell):
    source, target = cell
    current = side_by_side(source)
    found = plan(current, target, range(8))
    assert found.units == TABLE_VI[cell]
    check(found, current, target)


def test_volume_of_the_receiver_is_not_the_time_when_several_can_send():
    wrong = 0
    for (source, target), units in TABLE_VI.items():
        found = plan(side_by_side(source), target, range(8))
        received = {gpu: sum(len(t.blocks) for t in found.transfers if t.target == gpu) for gpu in range(8)}
        wrong += max(received.values()) != units
    assert wrong >= 9


@st.composite
def small_cases(draw):
    gpus = draw(st.integers(2, 5))
    source = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3).filter(lambda x: sum(x) <= gpus))
    target = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3).filter(lambda x: sum(x) <= gpus))
    order = draw(st.permutations(range(gpus)))
    at, current = 0, []
    for tp in source:
        current.append(tuple(order[at : at + tp]))
        at += tp
    return current, tuple(target), gpus


def least_by_trying(current, target, gpus, blocks):
    """(volume, time) of the best of all places of all shards, holders chosen by trying every load."""
    have = holdings(current, blocks)
    slots = [shard(rank, tp, blocks) for tp in target for rank in range(tp)]
    best = None
    for places in itertools.permutations(range(gpus), len(slots)):
        volume, busiest = 0, 0
        for gpu, wanted in zip(places, slots, strict=True):
            missing = sorted(wanted - have.get(gpu, set()))
            volume += len(missing)
            # Blocks that the same GPUs hold are alike: a link carries at least ceil(blocks / holders) of each such set,
            # and of each union of sets (Hall's condition).
            holders = [frozenset(g for g in have if g != gpu and block in have[g]) for block in missing]
            kinds = set(holders)
            for size in range(1, len(kinds) + 1):
                for some in itertools.combinations(kinds, size):
                    count = sum(own in some for own in holders)
                    busiest = max(busiest, -(-count // len(frozenset.union(*some))))
        best = min(best or (volume, busiest), (volume, busiest))
    return best


@settings(max_examples=examples(30), deadline=None)
@given(small_cases())
def test_plan_is_the_best_of_all_when_all_are_tried(case):
    current, target, gpus = case
    found = plan(current, target, range(gpus))
    check(found, current, target)
    volume, busiest = least_by_trying(current, target, gpus, found.block_count)
    assert (moved(found), found.units) == (volume, busiest)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4).filter(lambda x: sum(x) <= 8))
def test_nothing_moves_and_instances_stay_when_the_layout_is_the_same(layout):
    current = side_by_side(tuple(layout))
    found = plan(current, layout, range(8))
    assert (found.units, moved(found)) == (0.0, 0.0)
    assert set(current) <= set(found.instances)


def test_an_instance_is_left_alone_when_it_can_be():
    found = plan([(0, 1), (2, 3, 4, 5)], (4, 4), range(8))
    assert {(0, 1), (2, 3, 4, 5)} & set(found.instances) == {(2, 3, 4, 5)}


def test_blocks_are_finer_when_a_degree_does_not_divide_eight():
    current = side_by_side((3,))
    found = plan(current, (6,), range(6))
    assert found.block_count == 24
    assert found.units == pytest.approx(8 / 6)
    check(found, current, (6,))


@pytest.mark.parametrize(
    ("current", "target", "gpus"),
    [([], (8,), 8), ([(0, 0)], (2,), 8), ([(0, 9)], (2,), 8), ([(0, 1)], (), 8), ([(0, 1)], (8,), 4), ([()], (1,), 2)],
)
def test_plan_is_refused_when_it_makes_no_sense(current, target, gpus):
    with pytest.raises(ValueError, match=r"re-shard|belongs|cannot hold"):
        plan(current, target, range(gpus))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.sets(st.integers(0, 4), min_size=1).map(sorted), max_size=6))
def test_busiest_holder_sends_the_fewest_when_all_choices_are_tried(holders):
    chosen = even(holders)
    assert all(by in own for by, own in zip(chosen, holders, strict=True))
    busiest = max((chosen.count(by) for by in chosen), default=0)
    best = min(max((way.count(by) for by in way), default=0) for way in itertools.product(*holders))
    assert busiest == best


def test_old_instance_serves_on_when_memory_allows():
    """Published: TP4 -> TP8 at full throughput in T, about 50 ms; TP8 -> TP4 with less KV cache."""
    up = outlook(plan([(0, 1, 2, 3)], (8,), range(8)), LLAMA, ROOM, 300 * GB, 0.95)
    assert up.transfer_s == pytest.approx(0.05, rel=0.2)
    assert (up.kv_share, up.serves_on) == (1.0, True)
    down = outlook(plan([tuple(range(8))], (4,), range(8)), LLAMA, ROOM, 300 * GB, 0.95)
    assert down.serves_on
    assert 0.0 < down.kv_share < 1.0


def test_old_instance_ends_first_when_both_do_not_fit():
    """Published: TP2 and TP4 of a 70B model exceed 80 GB."""
    found = outlook(plan([(0, 1, 2, 3)], (2,), range(4)), LLAMA, ROOM, 300 * GB, 0.95)
    assert not found.serves_on
    assert found.sync_s >= 0.95


def test_nobody_serves_when_not_even_what_comes_fits():
    found = outlook(plan([(0, 1, 2, 3)], (2,), range(4)), LLAMA, 0.6 * LLAMA / 2, 300 * GB, 0.95)
    assert (found.kv_share, found.serves_on) == (0.0, False)
    assert found.transfer_s > 0.0
    assert found.sync_s >= 0.95


def test_nothing_happens_when_nothing_changes():
    found = outlook(plan([(0, 1)], (2,), range(2)), LLAMA, ROOM, 300 * GB, 0.95)
    assert (found.transfer_s, found.sync_s, found.serves_on) == (0.0, 0.0, True)


def test_shards_stand_where_they_may_when_other_gpus_would_move_less():
    free = plan([tuple(range(8))], (4,), range(8))
    bound = plan([tuple(range(8))], (4,), range(8), onto={4, 5, 6, 7})
    assert set(bound.instances[0]) == {4, 5, 6, 7}
    assert free.units <= bound.units
    with pytest.raises(ValueError, match="2 GPUs cannot hold instances of TP 4"):
        plan([(0, 1)], (4,), range(8), onto={0, 1})
    with pytest.raises(ValueError, match="on GPUs of the server"):
        plan([(0, 1)], (4,), range(4), onto={0, 1, 2, 9})
