"""Queues reordered, requests re-steered and squashed, where the right answer can be worked out by hand.

Each iteration takes a second and 100 J and has room for one prompt of 10 tokens.
"""

from __future__ import annotations

from collections import Counter

import pytest

from core.simulator.kernel.commands import Assign, FleetView, Placement, RequestView, SimCommand
from core.simulator.kernel.driver import MACRO, Stepping, simulate
from core.simulator.kernel.kernel import DONE, FINISHED
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
from core.types import ReorderQueue, ResteerRequests, SquashRequests
from tests.unit.core.simulator.kernel.scenarios import STEPPINGS, Schedule, total_j

COSTS = FixedCosts(base_s=1.0, busy_w=100.0, idle_w=10.0)
FOUR = [(0.0, 10, 1)] * 4  # one after another: done at 1, 2, 3 and 4 s


def spec(name: str, budget: int = 10, room: int = 1000) -> InstanceSpec:
    return InstanceSpec(
        name, "fixed", "fixed", 1, 1.0, tokens_per_iteration=budget, kv_capacity_tokens=room, costs=COSTS
    )


def two(pools: tuple[PoolSpec, ...] | None = None, room: int = 1000) -> FleetSpec:
    """Requests go to i0 of pool a; i1 of pool b has nothing to do."""
    pools = pools or (PoolSpec("a", (0,)), PoolSpec("b", (1,)))
    return FleetSpec((spec("i0"), spec("i1", room=room)), pools, (0,))


class First:
    """A Router that sends everything to i0, and notes when it was asked."""

    tick_s = 1.0

    def __init__(self) -> None:
        self.asked: list[tuple[float, int, float]] = []

    def place(self, request: RequestView, view: FleetView) -> Placement:
        self.asked.append((view.now_s, request.number, request.arrival_s))
        return Placement(0)


def run(
    stepping: Stepping,
    fleet: FleetSpec,
    rows: list[tuple[float, int, int]],
    *commands: tuple[int, SimCommand],
    router: First | None = None,
) -> Outcome:
    at, prompt, output = zip(*rows, strict=True)
    control = Schedule(commands, 1.0)
    requests = load(at, prompt, output)
    out = simulate(fleet, requests, stepping=stepping, controls=[control], router=router, keep_events=1000)
    # Served exactly once, tokens and energy conserved.
    assert out.rows["status"].tolist() == [DONE] * len(rows)
    assert out.rows["generated"].tolist() == list(output)
    finished = Counter(request for kind, request, _, _ in out.events if kind == FINISHED)
    assert finished == dict.fromkeys(range(len(rows)), 1)
    assert out.rows["energy_j"].sum() + out.spent_j["idle"].sum() == pytest.approx(total_j(out), rel=1e-9)
    return out


# -- reorder ---------------------------------------------------------------------------------------


@STEPPINGS
def test_named_requests_take_their_places_in_the_new_order_when_reordered(stepping: Stepping) -> None:
    # At 1 s the second is admitted; 2, 3 and 4 wait, and only 4 and 2 are named: they change places.
    out = run(stepping, two(), [*FOUR, FOUR[0]], (1, ReorderQueue("i0", ("4", "2", "9"))))
    assert out.rows["finish_s"].tolist() == [1.0, 2.0, 5.0, 4.0, 3.0]
    assert out.refused == 0


@STEPPINGS
def test_smaller_request_goes_on_at_once_when_it_comes_before_one_that_found_no_room(stepping: Stepping) -> None:
    fleet = FleetSpec((spec("i0", room=40),), (PoolSpec("a", (0,)),))
    rows = [(0.0, 10, 20), (0.5, 32, 1), (0.5, 5, 1)]
    waits = run(stepping, fleet, rows)
    assert waits.rows["finish_s"].tolist() == [20.0, 24.0, 24.0]
    out = run(stepping, fleet, rows, (2, ReorderQueue("i0", ("2", "1"))))
    assert out.rows["finish_s"].tolist() == [20.0, 24.0, 4.0]


@STEPPINGS
def test_order_stays_when_nobody_named_waits_or_the_queue_has_its_own(stepping: Stepping) -> None:
    out = run(stepping, two(), FOUR, (1, ReorderQueue("i0", ("0", "77"))), (1, ReorderQueue("i1", ("2",))))
    assert out.rows["finish_s"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert out.refused == 2


# -- re-steer --------------------------------------------------------------------------------------


@STEPPINGS
def test_waiting_requests_are_served_elsewhere_when_resteered(stepping: Stepping) -> None:
    out = run(stepping, two(), FOUR, (1, ResteerRequests("i0", (("3", "i1"), ("2", "i1")))))
    assert out.rows["instance"].tolist() == [0, 0, 1, 1]
    assert out.rows["pool"].tolist() == [0, 0, 1, 1]
    assert out.rows["finish_s"].tolist() == [1.0, 2.0, 3.0, 2.0]
    assert out.refused == 0


@STEPPINGS
def test_requests_stay_when_they_have_begun_or_the_other_cannot_take_them(stepping: Stepping) -> None:
    moves = (("0", "i1"), ("1", "i0"), ("2", "i1"), ("77", "i1"))
    out = run(stepping, two(room=5), [(0.0, 10, 5), *FOUR[1:]], (1, ResteerRequests("i0", moves)))
    assert out.rows["instance"].tolist() == [0] * 4
    assert out.refused == 4


@STEPPINGS
def test_request_with_a_split_stays_in_its_pool_when_resteered(stepping: Stepping) -> None:
    pools = (PoolSpec("a", (0,), handover=Handover("b", "prompt")), PoolSpec("b", (1,)))
    out = run(stepping, two(pools), [(0.0, 10, 2)] * 3, (1, ResteerRequests("i0", (("2", "i1"),))))
    assert out.refused == 1
    assert out.rows["handed"].tolist() == [1, 1, 1]


# -- squash ----------------------------------------------------------------------------------------


@STEPPINGS
def test_squashed_request_comes_again_later_and_its_latency_counts_from_its_first_arrival(stepping: Stepping) -> None:
    router = First()
    out = run(stepping, two(), FOUR, (1, SquashRequests("i0", ("2", "3"), 3.5)), router=router)
    assert out.rows["retries"].tolist() == [0, 0, 1, 1]
    assert router.asked[4:] == [(4.5, 2, 0.0), (4.5, 3, 0.0)]
    assert out.rows["arrival_s"].tolist() == [0.0] * 4
    assert out.rows["finish_s"].tolist() == [1.0, 2.0, 5.5, 6.5]
    assert out.rows["first_token_s"].tolist() == [1.0, 2.0, 5.5, 6.5]


@STEPPINGS
def test_squashed_request_goes_where_its_class_is_served_then_when_there_is_no_router(stepping: Stepping) -> None:
    out = run(stepping, two(), FOUR, (1, SquashRequests("i0", ("3",), 2.0)), (2, Assign({0: "b"})))
    assert out.rows["instance"].tolist() == [0, 0, 0, 1]
    assert out.rows["finish_s"][3] == 4.0


@STEPPINGS
def test_work_is_lost_and_paid_for_when_a_landed_part_is_squashed(stepping: Stepping) -> None:
    # Half of each prompt is computed on i0. At 2 s both are on i1, where request 0 is served; 1 waits and is squashed.
    pools = (PoolSpec("a", (0,), handover=Handover("b", 0.45)), PoolSpec("b", (1,)))
    rows = [(0.0, 20, 2), (0.0, 20, 2)]
    whole = run(stepping, two(pools), rows)
    out = run(stepping, two(pools), rows, (2, SquashRequests("i1", ("1",), 0.0)))
    again = out.rows["retries"].tolist()
    assert again[0] == 0
    if again[1]:
        assert total_j(out) - out.spent_j["idle"].sum() > total_j(whole) - whole.spent_j["idle"].sum()


@STEPPINGS
def test_request_with_a_token_stays_when_squashed(stepping: Stepping) -> None:
    out = run(stepping, two(), [(0.0, 10, 5), (0.0, 10, 1)], (2, SquashRequests("i0", ("0", "1"), 1.0)))
    assert out.rows["retries"].tolist() == [0, 0]
    assert out.refused == 2


def test_run_is_refused_when_a_request_is_no_number() -> None:
    with pytest.raises(SimulationError, match="named the request 'r1'"):
        run(MACRO, two(), FOUR, (1, SquashRequests("i0", ("r1",), 1.0)))
