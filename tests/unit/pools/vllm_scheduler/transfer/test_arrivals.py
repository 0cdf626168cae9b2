"""Slots for other engines' caches: who may write where, and when a slot is anybody's again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools.vllm_scheduler.transfer.arrivals import Arrivals

KEYS = ["a", "b", "c", "d"]


def test_blocks_are_found_as_far_as_all_before_them_are_here() -> None:
    arrivals = Arrivals(8)
    one, two, three, four = arrivals.open("t", 4, 0.0)
    arrivals.written("t", [("a", one), ("c", three)], 1.0)
    assert arrivals.look("t", KEYS) == ([one], False, True)
    arrivals.written("t", [("b", two)], 2.0)
    assert arrivals.look("t", KEYS) == ([one, two, three], False, True)
    arrivals.end("t", 3.0)
    assert arrivals.look("t", KEYS) == ([one, two, three], True, True)
    assert arrivals.free == 5, "the slot that was not used"
    arrivals.release("t")
    assert arrivals.free == 8
    assert arrivals.look("t", KEYS) == ([], True, False)
    assert four not in (one, two, three)


def test_transfer_gets_as_many_slots_as_there_are() -> None:
    arrivals = Arrivals(3)
    assert len(arrivals.open("t", 2, 0.0)) == 2
    assert len(arrivals.open("u", 2, 0.0)) == 1
    assert arrivals.open("v", 2, 0.0) == []


def test_sender_that_names_a_slot_of_another_transfer_is_refused() -> None:
    arrivals = Arrivals(4)
    mine, its = arrivals.open("t", 1, 0.0)[0], arrivals.open("u", 1, 0.0)[0]
    for slot in (its, 99, -1):
        with pytest.raises(ValueError, match="not one of transfer t"):
            arrivals.written("t", [("a", slot)], 0.0)
    arrivals.written("t", [("a", mine)], 0.0)
    with pytest.raises(ValueError, match="not one"):
        arrivals.written("t", [("b", mine)], 0.0)
    with pytest.raises(ValueError, match="open already"):
        arrivals.open("t", 1, 0.0)


def test_slots_that_a_lost_sender_may_still_write_are_not_granted_before_the_network_forgets() -> None:
    arrivals = Arrivals(2, quarantine_s=1000.0)
    one, _ = arrivals.open("t", 2, 0.0)
    arrivals.written("t", [("a", one)], 0.0)
    arrivals.lost(["t"], 10.0)
    assert arrivals.look("t", KEYS) == ([one], True, True), "what is here can be used"
    arrivals.release("t")
    assert arrivals.open("u", 2, 1009.0) == [one]
    assert len(arrivals.open("v", 2, 1010.0)) == 1


def test_slots_of_a_cache_that_nobody_needs_wait_for_the_end_of_its_sender() -> None:
    arrivals = Arrivals(2)
    one, _ = arrivals.open("t", 2, 0.0)
    arrivals.written("t", [("a", one)], 0.0)
    arrivals.release("t")
    assert arrivals.free == 1, "the one that is written; the other may be written to"
    arrivals.end("t", 1.0)
    assert arrivals.free == 2


def test_cache_that_nobody_fetches_is_dropped() -> None:
    arrivals = Arrivals(2, kept_s=120.0)
    slots = arrivals.open("t", 2, 0.0)
    arrivals.written("t", list(zip("ab", slots, strict=True)), 5.0)
    arrivals.end("t", 5.0)
    assert arrivals.open("u", 1, 125.0) == []
    assert len(arrivals.open("v", 2, 126.0)) == 2


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "written", "end", "lost", "release"]), st.sampled_from("tuv"), st.integers(0, 4)
    ),
    max_size=40,
)


@given(_STEPS)
def test_no_slot_is_ever_granted_to_two_who_may_write(steps: list[tuple[str, str, int]]) -> None:
    arrivals, may_write = Arrivals(5), dict[str, set[int]]()
    for now_s, (op, transfer, number) in enumerate(steps):
        match op:
            case "open" if transfer not in may_write:
                if arrivals.look(transfer, []).known:
                    continue
                granted = set(arrivals.open(transfer, number, now_s))
                assert not any(granted & other for other in may_write.values())
                may_write[transfer] = granted
            case "written" if may_write.get(transfer):
                slot = may_write[transfer].pop()
                arrivals.written(transfer, [(str(number), slot)], now_s)
            case "end" if transfer in may_write:
                arrivals.end(transfer, now_s)
                del may_write[transfer]
            case "lost" if transfer in may_write:
                arrivals.lost([transfer], now_s)
                may_write[f"lost {now_s}"] = may_write.pop(transfer)
            case "release":
                arrivals.release(transfer)
