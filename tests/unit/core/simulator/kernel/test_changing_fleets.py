"""Fleets that change and requests that move, where the right answer can be worked out by hand.

Each iteration takes a second and 100 J; an instance with nothing to do draws 10 W.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.simulator.kernel.commands import OFF, Assign, Drain, FleetView, Reshard, SimCommand, Start
from core.simulator.kernel.driver import MACRO, Stepping, simulate
from core.simulator.kernel.kernel import DONE, REJECTED
from core.simulator.kernel.outcome import Outcome
from core.simulator.kernel.simulated import (
    FixedCosts,
    FleetSpec,
    Handover,
    InstanceSpec,
    PoolSpec,
    SimulationError,
    load,
)
from core.types import SetSmClock
from tests.unit.core.simulator.kernel.scenarios import STEPPINGS, Schedule

SPEC = InstanceSpec("i0", "fixed", "fixed", 1, 1.0, costs=FixedCosts(base_s=1.0, busy_w=100.0, idle_w=10.0))
ONE = FleetSpec((SPEC,), (PoolSpec("all", (0,)),))


def spec(name: str, budget: int = 2048) -> InstanceSpec:
    return replace(SPEC, name=name, tokens_per_iteration=budget)


def stages(handover: Handover, budget: int = 2048) -> FleetSpec:
    pools = (PoolSpec("first", (0,), handover=handover), PoolSpec("second", (1,)))
    return FleetSpec((spec("i0", budget), spec("i1")), pools)


def run(
    stepping: Stepping,
    fleet: FleetSpec,
    rows: list[tuple[float, int, int]],
    *commands: tuple[int, SimCommand],
    every_s: float = 1.0,
) -> Outcome:
    at, prompt, output = zip(*rows, strict=True)
    controls = [Schedule(commands, every_s)] if commands else []
    return simulate(fleet, load(at, prompt, output), stepping=stepping, controls=controls)


@STEPPINGS
@pytest.mark.parametrize(
    ("budget", "chunked", "finish_s"),
    [
        (2048, True, 4.5),  # token 1 at 1 s, 10 tokens take 1 s, 0.5 s later they land; tokens 2 and 3 a second each
        (4, True, 5.7),  # chunks end at 1, 2 and 3 s; the last two tokens take 0.2 s: they land at 3.7
        (4, False, 6.5),  # all ten are sent at 3 s: they land at 4.5
    ],
)
def test_decode_goes_on_elsewhere_when_prefill_and_decode_are_apart(
    stepping: Stepping, budget: int, chunked: bool, finish_s: float
) -> None:
    handover = Handover("second", "prompt", token_s=0.1, latency_s=0.5, chunked=chunked)
    out = run(stepping, stages(handover, budget), [(0.0, 10, 3)])
    assert out.rows["first_token_s"][0] == (1.0 if budget > 4 else 3.0)
    assert out.rows["finish_s"][0] == pytest.approx(finish_s)
    assert out.rows["itl_max_s"][0] == pytest.approx(finish_s - 1.0 - out.rows["first_token_s"][0])
    assert out.rows["instance"].tolist() == [1]


@STEPPINGS
def test_second_instance_ends_the_prompt_when_the_split_lies_within_it(stepping: Stepping) -> None:
    out = run(stepping, stages(Handover("second", 0.25)), [(0.0, 10, 10)])  # 5 of 20 tokens
    assert out.rows["first_token_s"].tolist() == [2.0]
    assert out.rows["finish_s"].tolist() == [11.0]
    assert out.spent_j["prefill"].tolist() == [100.0, 100.0]


@STEPPINGS
def test_second_instance_takes_the_last_tokens_when_the_split_lies_within_the_output(stepping: Stepping) -> None:
    out = run(stepping, stages(Handover("second", 0.75)), [(0.0, 10, 10)])  # 15 of 20: six tokens come from the first
    assert out.rows["finish_s"].tolist() == [10.0]
    assert out.spent_j["decode"].tolist() == [500.0, 400.0]
    assert out.spent_j["prefill"].tolist() == [100.0, 0.0]


@STEPPINGS
def test_landed_request_goes_on_decoding_when_a_whole_prompt_has_all_the_budget(stepping: Stepping) -> None:
    pools = (PoolSpec("first", (0,), handover=Handover("second", latency_s=0.5)), PoolSpec("second", (1,)))
    fleet = FleetSpec((spec("i0"), spec("i1", budget=4)), pools, (0, 1))
    requests = load([0.0, 0.0, 0.0], [10, 40, 40], [3, 1, 1], request_class=[0, 1, 1])
    out = simulate(fleet, requests, stepping=stepping)
    # It lands at 1.5 s. From 2 to 4 s it takes a token of each iteration's budget; the prompts need 80 more.
    assert out.rows["finish_s"].tolist() == [4.0, 11.0, 21.0]
    assert out.rows["itl_max_s"][0] == 2.0
    assert out.spent_j["decode"].tolist() == [0.0, 200.0]


@STEPPINGS
def test_landed_prompt_is_ended_before_others_begin_when_it_was_cut(stepping: Stepping) -> None:
    pools = (PoolSpec("first", (0,), handover=Handover("second", 0.5)), PoolSpec("second", (1,)))
    fleet = FleetSpec((spec("i0"), spec("i1", budget=4)), pools, (0, 1))
    requests = load([0.0] * 4, [22, 12, 12, 12], [2, 1, 1, 1], request_class=[0, 1, 1, 1])
    out = simulate(fleet, requests, stepping=stepping)
    # 12 of its 24 tokens are there at 1 s, when the first whole prompt is under way; it goes before the other two.
    assert out.rows["finish_s"].tolist() == [7.0, 3.0, 9.0, 12.0]


@STEPPINGS
def test_landed_request_waits_when_there_is_no_room_for_its_next_token(stepping: Stepping) -> None:
    pools = (PoolSpec("first", (0,), handover=Handover("second")), PoolSpec("second", (1,)))
    small = replace(spec("i1"), kv_capacity_tokens=20)
    fleet = FleetSpec((spec("i0"), small), pools, (0, 1))
    requests = load([0.0, 0.0], [10, 10], [3, 6], request_class=[0, 1])
    out = simulate(fleet, requests, stepping=stepping)
    assert out.rows["finish_s"].tolist() == [8.0, 6.0]


@STEPPINGS
def test_requests_wait_and_the_start_costs_when_the_first_instance_comes_up(stepping: Stepping) -> None:
    empty = FleetSpec((), (PoolSpec("all", ()),))
    out = run(stepping, empty, [(1.0, 10, 2), (2.0, 10, 1)], (0, Start(SPEC, "all", 3.0)))
    assert out.rows["first_token_s"].tolist() == [4.0, 5.0]  # the second joins the next iteration
    assert out.spent_j["transition"].tolist() == [30.0]
    assert out.on_s.tolist() == [5.0]


@STEPPINGS
def test_instance_is_off_after_its_last_request_when_drained(stepping: Stepping) -> None:
    two = FleetSpec((spec("i0"), spec("i1")), (PoolSpec("all", (0, 1)),))
    out = run(stepping, two, [(0.0, 10, 4), (2.5, 10, 4), (3.5, 10, 4)], (2, Drain("i0")))
    assert out.rows["instance"].tolist() == [0, 1, 1]
    assert out.rows["status"].tolist() == [DONE] * 3
    assert out.on_s.tolist() == [4.0, out.end_s]
    assert out.spent_j["idle"].tolist() == [0.0, 25.0]


@STEPPINGS
def test_shadow_takes_over_when_it_is_ready(stepping: Stepping) -> None:
    start = Start(spec("shadow"), "all", 2.0, replaces=("i0",))
    out = run(stepping, ONE, [(0.0, 10, 5), (2.5, 10, 1), (3.5, 10, 1)], (1, start))
    assert out.rows["instance"].tolist() == [0, 0, 1]
    assert out.on_s[0] == 5.0
    assert out.spent_j["transition"].tolist() == [0.0, 20.0]


@STEPPINGS
def test_an_off_instance_of_the_same_kind_is_used_again_when_one_is_started(stepping: Stepping) -> None:
    two = FleetSpec((spec("i0"), spec("i1")), (PoolSpec("all", (0, 1)),))
    out = run(stepping, two, [(9.0, 10, 1)], (1, Drain("i1")), (3, Start(spec("other"), "all", 1.0)))
    assert [s.name for s in out.instances] == ["i0", "i1"]
    assert out.on_s.tolist() == [10.0, 1.0 + 7.0]


def test_a_gpu_with_a_higher_top_clock_starts_when_another_is_off() -> None:
    slow = InstanceSpec("slow", "Llama3-8B", "A100-80GB", 1, 1410.0)
    fast = InstanceSpec("fast", "Llama3-8B", "H100-SXM-80GB", 1, 1980.0)
    two = FleetSpec((slow, replace(slow, name="other")), (PoolSpec("all", (0, 1)),))
    out = run(MACRO, two, [(9.0, 10, 1)], (1, Drain("other")), (3, Start(fast, "all", 1.0)))
    assert [s.gpu for s in out.instances] == ["A100-80GB", "A100-80GB", "H100-SXM-80GB"]


@STEPPINGS
def test_requests_go_on_with_their_cache_when_their_gpus_are_resharded(stepping: Stepping) -> None:
    reshard = Reshard(("i0",), (spec("a"), spec("b")), transfer_s=1.5, sync_s=1.5)
    out = run(stepping, ONE, [(0.0, 10, 5), (0.0, 10, 5)], (1, reshard))
    # The second joins an iteration later. Asked at 1 s, halted at 2.5 s, the iteration ends at 3 s with tokens 3 and 2;
    # at 4 s each goes on on one of the new ones.
    assert out.rows["finish_s"].tolist() == [6.0, 7.0]
    assert out.rows["instance"].tolist() == [1, 2]
    assert out.rows["itl_max_s"].tolist() == [2.0, 2.0]
    assert out.rows["preemptions"].tolist() == [0, 0]
    assert out.spent_j["transition"].tolist() == [10.0, 0.0, 0.0]
    assert out.on_s.tolist() == [4.0, 3.0, 3.0]


@STEPPINGS
def test_run_ends_with_the_last_iteration_when_that_leaves_nothing_but_a_rejection(stepping: Stepping) -> None:
    small = replace(spec("a"), kv_capacity_tokens=12)
    out = run(stepping, ONE, [(0.0, 10, 5)], (1, Reshard(("i0",), (small,), transfer_s=0.0, sync_s=0.0)), every_s=0.7)
    assert out.rows["status"].tolist() == [REJECTED]
    assert (out.on_s[0], out.end_s) == (1.0, 1.0)


@STEPPINGS
def test_requests_are_rejected_and_counted_when_nobody_comes_to_serve_them(stepping: Stepping) -> None:
    out = run(stepping, ONE, [(0.0, 10, 2), (5.0, 10, 2)], (1, Drain("i0")))
    assert out.rows["status"].tolist() == [DONE, REJECTED]


@STEPPINGS
def test_requests_go_to_another_pool_when_their_cell_is_assigned_to_it(stepping: Stepping) -> None:
    two = FleetSpec((spec("i0"), spec("i1")), (PoolSpec("a", (0,)), PoolSpec("b", (1,))), (0,))
    out = run(stepping, two, [(0.0, 10, 1), (2.5, 10, 1)], (2, Assign({0: "b"})))
    assert out.rows["instance"].tolist() == [0, 1]


@STEPPINGS
def test_requests_are_shared_out_by_weight_when_routed_so(stepping: Stepping) -> None:
    two = FleetSpec((spec("i0"), spec("i1")), (PoolSpec("all", (0, 1), "weighted"),), (0,), (3.0, 1.0))
    out = run(stepping, two, [(float(t), 10, 1) for t in range(8)])
    assert np.bincount(out.rows["instance"]).tolist() == [6, 2]


@STEPPINGS
def test_clock_changes_later_when_switching_takes_time(stepping: Stepping) -> None:
    real = InstanceSpec("i0", "Llama3-70B", "A100-80GB", 4, 1410.0)
    line = FleetSpec((real,), (PoolSpec("all", (0,)),))
    slow = [Schedule(((0, SetSmClock("i0", 600.0)),), 100.0)]
    runs = [
        simulate(line, load([0.5], [100], [200]), stepping=stepping, controls=slow, clock_switch_s=lambda spec, s=s: s)
        for s in (0.0, 3.0)
    ]
    assert runs[0].rows["finish_s"][0] > runs[1].rows["finish_s"][0]
    assert runs[0].mhz_s.tolist() == pytest.approx((600.0 * runs[0].on_s).tolist())
    assert runs[1].mhz_s.tolist() == pytest.approx((1410.0 * 3.0 + 600.0 * (runs[1].on_s - 3.0)).tolist())


def test_view_tells_what_happened_when_a_control_looks() -> None:
    views: list[FleetView] = []

    class Looks:
        name, period_s = "looks", 2.0

        def step(self, view: FleetView):  # type: ignore[no-untyped-def]
            views.append(view)
            return Schedule(()).step(view)

    simulate(ONE, load([0.5, 0.6, 7.5], [10, 20, 30], [3, 1, 1]), controls=[Looks()])
    # The second one came during the first's first iteration and finished a second later.
    assert (views[1].running[0], views[1].waiting[0]) == (2, 0)
    assert views[1].ttft_s[0] == pytest.approx(1.0)
    assert np.isnan(views[1].e2e_s[0])
    assert views[2].tpot_s[0] == pytest.approx(1.0)
    assert views[2].e2e_s[0] == pytest.approx((3.0 + 1.9) / 2)
    assert np.isnan(views[3].ttft_s[0])  # nothing since
    assert views[4].arrived[0].tolist() == [[2, 30, 4], [1, 30, 1]]


@pytest.mark.parametrize("blocks", [1, 4])
def test_each_request_that_was_done_is_shown_once_when_a_control_asks(blocks: int) -> None:
    shown: list[np.ndarray] = []

    class Asks:
        name, period_s = "asks", 2.0

        def step(self, view: FleetView):  # type: ignore[no-untyped-def]
            rows = view.ended()
            assert view.ended() is rows, "others that look at the same time see the same"
            assert (rows[:, 4] <= view.now_s).all()
            shown.append(rows)
            return Schedule(()).step(view)

    at_s, prompts, outputs = [0.5, 0.6, 7.5, 9.1, 17.0], [10, 20, 30, 40, 50], [3, 1, 1, 4, 2]
    parts = np.array_split(np.arange(5), blocks)
    given = [load(*([column[k] for k in part] for column in (at_s, prompts, outputs))) for part in parts]
    given = [replace(part, predicted_tokens=part.output_tokens + 1) for part in given]
    outcome = simulate(ONE, given[0] if blocks == 1 else given, controls=[Asks()])
    rows = outcome.rows[outcome.rows["finish_s"] <= (len(shown) - 1) * 2.0]
    found = np.concatenate(shown)
    assert len(rows) >= 4
    assert sorted(found[:, 0]) == sorted(rows["prompt"])
    ttft_s = dict(zip(rows["prompt"].tolist(), rows["first_token_s"] - rows["arrival_s"], strict=True))
    assert [ttft_s[int(tokens)] for tokens in found[:, 0]] == pytest.approx(found[:, 2].tolist())
    assert np.isnan(found[found[:, 0] == 20.0, 3]), "a single token"
    assert {(int(row[0]), int(row[6])) for row in found} <= set(zip(prompts, outputs, strict=True))
    assert (found[:, 5] == found[:, 6] + 1).all(), "as predicted, and as it was"


@STEPPINGS
def test_latencies_are_means_since_the_last_look_when_answers_are_under_way(stepping: Stepping) -> None:
    views: list[FleetView] = []

    class Looks:
        name, period_s = "looks", 2.6

        def step(self, view: FleetView):  # type: ignore[no-untyped-def]
            views.append(view)
            return Schedule(()).step(view)

    arrivals = load([0.0, 0.2, 4.2, 11.0], [10, 10, 10, 10], [9, 9, 2, 1])
    simulate(ONE, arrivals, stepping=stepping, controls=[Looks()])
    seen = [(view.ttft_s[0], view.tpot_s[0], view.e2e_s[0]) for view in views]
    none = np.nan
    assert seen[1:5] == [
        pytest.approx(own, nan_ok=True)
        for own in (
            ((1.0 + 1.8) / 2, 1.0, none),
            (none, 1.0, none),
            (6.0 - 4.2, 1.0, 7.0 - 4.2),
            (none, 1.0, (9.0 + 9.8) / 2),
        )
    ]


@STEPPINGS
def test_requests_go_to_the_next_pool_when_their_own_is_full_or_empty(stepping: Stepping) -> None:
    def instances(rows: list[tuple[float, int, int]], members: tuple[tuple[int, ...], ...]) -> list[int]:
        pools = (
            PoolSpec("a", members[0], most_unstarted=2, spills=("b", "c")),
            PoolSpec("b", members[1]),
            PoolSpec("c", members[2]),
        )
        fleet = FleetSpec((spec("i0"), spec("i1")), pools)
        return run(stepping, fleet, rows, (1, SetSmClock("i0", 1.0))).rows["instance"].tolist()

    # Two have no first token at each instance when the fifth comes: it waits at its own. The sixth finds room again.
    rows = [(0.0, 10, 2), (0.1, 10, 2), (0.2, 10, 2), (0.3, 10, 2), (0.4, 10, 2), (5.0, 10, 1)]
    assert instances(rows, ((0,), (1,), ())) == [0, 0, 1, 1, 0, 0]
    assert instances(rows, ((), (), (0, 1))) == [0, 1, 0, 1, 0, 1]


def test_command_is_refused_when_it_comes_too_late() -> None:
    reshard = Reshard(("i0",), (spec("a"),), transfer_s=3.0, sync_s=1.0)
    out = run(MACRO, ONE, [(0.0, 10, 9)], (1, reshard), (2, Drain("i0")), (2, reshard))
    assert out.refused == 2
    assert out.rows["status"].tolist() == [DONE]


def test_run_is_refused_when_a_control_names_what_is_not_there() -> None:
    with pytest.raises(SimulationError, match="there is no such instance"):
        run(MACRO, ONE, [(0.0, 10, 9)], (1, Drain("i7")))
    with pytest.raises(SimulationError, match="there is no pool 'b'; known: all"):
        run(MACRO, ONE, [(0.0, 10, 9)], (1, Start(SPEC, "b", 0.0)))


def test_instance_stays_off_when_drained_while_it_starts() -> None:
    views: list[FleetView] = []

    class Starts:
        name, period_s = "starts", 1.0

        def step(self, view: FleetView):  # type: ignore[no-untyped-def]
            views.append(view)
            return Schedule(((1, Start(spec("new"), "all", 5.0)), (3, Drain("new"))), 1.0).step(view)

    out = simulate(ONE, load([0.0], [10], [12]), controls=[Starts()])
    assert views[-1].state[1] == OFF
    assert out.spent_j["transition"].tolist() == [0.0, 20.0]
