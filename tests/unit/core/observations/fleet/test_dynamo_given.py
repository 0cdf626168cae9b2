"""What DynamoLLM's loops are given, from plain values."""

from __future__ import annotations

import pytest

from core.algorithms.fleet.hand_down import ClassLoad
from core.engine.overhead_table import OverheadTable, start_key
from core.engine.overheads import Overheads
from core.observations.demand.class_view import ClassView, Declared
from core.observations.fleet.dynamo_given import (
    ClassAhead,
    ServerKind,
    class_ahead,
    class_load,
    loads_of_servers,
    pool_loads,
    profiles,
    server_rps,
    shard_pool,
    spilled,
    starts_s,
    steps_ahead,
)
from core.observations.mode_profile import Lengths, mode_profile
from core.types import ChangeKind, ClassDemand, Limits, Mode, ModeProfile, PoolKey, Source

A100, H100 = "A100-80GB", "H100-SXM-80GB"


SMALL = ClassAhead("S", (300.0,), "recent", Lengths(100.0, 50.0), Limits(0.1, 0.09))
LARGE = ClassAhead("L", (400.0,), "recent", Lengths(400.0, 150.0), Limits(0.9, 0.09))


SERVERS = ServerKind("Llama2-70B", "vllm-v1", Mode(H100, 8))


def seen(max_rps: float) -> ClassView:
    """A class of which long answers are known to run longer, and what a server does for it."""
    profiles = {SERVERS.best: ModeProfile(max_rps, 900.0, None, None, None, Source.MODELLED)}
    return ClassView(ClassDemand("S", (1.0,), Limits(), 100.0, 50.0), Lengths(100.0, 50.0, 200.0), profiles, "")


@pytest.mark.parametrize(
    ("declared", "rates"),
    [
        (Declared(0.1, Lengths(100.0, 50.0)), (10.0, 10.0, 20.0)),
        (Declared(0.0, Lengths(100.0, 50.0)), (None, 5.0, 20.0)),
        (None, (None, 5.0, 20.0)),
    ],
)
def test_declared_load_is_the_least_while_its_rate_counts(
    declared: Declared | None, rates: tuple[float | None, ...]
) -> None:
    found = class_ahead(seen(2.0), Limits(0.1, 0.09), (None, 5.0, 20.0), "recent", declared)
    assert found == ClassAhead("S", rates, "recent", Lengths(100.0, 50.0), Limits(0.1, 0.09))


def test_server_carries_prompt_tokens_of_rounded_requests() -> None:
    odd = ClassAhead("S", (None, 3.0), "recent", Lengths(640.4, 200.0), Limits())
    assert class_load(odd, 2.5) == ClassLoad(
        PoolKey("cluster", "S"), (None, 3.0), 2.5 * odd.lengths.rounded.prompt_tokens, basis="recent"
    )


def test_server_that_cannot_keep_the_limits_serves_without_them() -> None:
    assert server_rps(SERVERS, seen(2.0)) == 2.0
    without = mode_profile(SERVERS.model, SERVERS.engine, SERVERS.best, seen(0.0).lengths.rounded, Limits()).max_rps
    assert server_rps(SERVERS, seen(0.0)) == without > 0.0
    assert server_rps(ServerKind("nobody's", "vllm-v1", Mode(H100, 8)), seen(0.0)) == 0.0


def test_class_without_instances_hands_on_everything() -> None:
    assert spilled(("S", "M", "L"), {"M", "L"}) == {"S": 1.0}
    assert spilled(("S", "M", "L"), {"S"}) == {"M": 1.0}
    assert spilled(("S", "M", "L"), ()) == {}


def test_starts_take_what_was_measured_and_the_time_until_a_loop_looks() -> None:
    published, key = Overheads(), start_key(SERVERS.model, H100, 8, warm=True)
    warm_s, cold_s = starts_s(OverheadTable(), published, SERVERS, True, 5.0)
    assert (warm_s, cold_s) == pytest.approx((5.0 + 33.0, 5.0 + 33.0 + 210.0))
    assert starts_s(OverheadTable(), published, SERVERS, False, 0.0) == pytest.approx((33.0 + 180.0, 423.0))
    assert starts_s(OverheadTable({key: 40.0}), published, SERVERS, True, 5.0) == (45.0, cold_s)
    unknown = ServerKind("nobody's", "vllm-v1", SERVERS.best)
    assert starts_s(OverheadTable(), published, unknown, True, 5.0) == pytest.approx((warm_s, cold_s))


@pytest.mark.parametrize(("cold_s", "steps"), [(33.0, 13), (1800.0, 19), (2000.0, 19)])
def test_scale_looks_to_the_end_of_the_epoch_that_a_start_is_ready_for(cold_s: float, steps: int) -> None:
    assert steps_ahead(1800.0, cold_s, 300.0) == steps


def test_larger_pool_gets_what_the_smaller_one_hands_on() -> None:
    apart, merged = pool_loads([SMALL, LARGE], [0.0, 0.0]), pool_loads([SMALL, LARGE], [0.5, 0.0])
    assert [load.rps for load in apart] == [3.0, 1.0]
    assert [load.rps for load in merged] == [1.5, 2.5]
    assert apart[1].lengths == LARGE.lengths
    assert merged[1].lengths.prompt_tokens == pytest.approx((1.5 * 100.0 + 400.0) / 2.5)
    assert merged[1].lengths.output_tokens == pytest.approx((1.5 * 50.0 + 150.0) / 2.5)
    assert [load.limits.ttft_s for load in (*apart, *merged)] == [0.1, 0.9, 0.1, 0.1]


def test_pool_of_which_nothing_is_foreseen_has_its_own_lengths() -> None:
    silent = ClassAhead("S", (None,), "none", SMALL.lengths, SMALL.limits)
    assert pool_loads([silent], [0.0])[0].rps == 0.0
    assert pool_loads([silent], [0.0])[0].lengths == SMALL.lengths


@pytest.mark.parametrize(("change", "drains"), [(ChangeKind.IN_PLACE, False), (ChangeKind.RESTART, True)])
def test_old_instances_drain_where_nothing_changes_in_place(change: ChangeKind, drains: bool) -> None:
    load = pool_loads([LARGE], [0.0])[0]
    own = profiles("Llama2-70B", "vllm-v1", (Mode(H100, 4), Mode(H100, 8)), load.lengths)
    found = shard_pool(PoolKey("east", "L"), SERVERS, {"n": (8,)}, load, own, 33.0, change)
    assert set(found.profiles) == {4, 8}
    assert (found.demand_rps, found.limits, found.gpus_per_node) == ((1.0,), LARGE.limits, 8)
    assert (found.drain_s > 0.0) is drains


def test_servers_share_the_load_of_their_class_with_what_stands_beside_them() -> None:
    loads, east, west = dict(zip("SL", pool_loads([SMALL, LARGE], [0.0, 0.0]), strict=True)), "east", "west"
    pools = {PoolKey(east, "S"): 1, PoolKey(east, "L"): 2, PoolKey(west, "L"): 1, PoolKey(west, "S"): 0}
    alone = loads_of_servers(SERVERS, loads, pools, {})
    assert {key: load.rps for key, load in alone.items()} == {
        PoolKey(east, "S"): 3.0,
        PoolKey(east, "L"): pytest.approx(2.0 / 3.0),
        PoolKey(west, "L"): pytest.approx(1.0 / 3.0),
    }
    alike = loads_of_servers(SERVERS, loads, pools, {PoolKey(west, "L"): {SERVERS.best: 1}})
    assert alike[PoolKey(east, "L")].rps == pytest.approx(0.5)
    slower = loads_of_servers(SERVERS, loads, pools, {PoolKey(west, "L"): {Mode(A100, 8): 1}})
    assert 0.5 < slower[PoolKey(east, "L")].rps < 2.0 / 3.0
    assert slower[PoolKey(east, "S")] == alone[PoolKey(east, "S")]
