"""The watchdog judges progress by its own monotonic clock, and restarts no more than helps."""

from __future__ import annotations

from itertools import pairwise

from greenserve.supervision.watchdog import LONGEST_LIMIT_S, Stall, Watchdog

LIMITS_S = {"beat": 60.0}


class World:
    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.sign: bytes | None = b"1"
        self.redis_there = True
        self.why = ""
        self.asked = 0
        self.watchdog = Watchdog(self.read, self.excuse, lambda: self.now_s, LIMITS_S)

    def read(self) -> dict[str, bytes | None] | None:
        return {"beat": self.sign} if self.redis_there else None

    def excuse(self) -> str:
        self.asked += 1
        return self.why

    def go(self, seconds: int, *, progress: bool = False, started_s: float = 0.0) -> list[tuple[float, Stall]]:
        found = []
        for _ in range(seconds):
            self.now_s += 1.0
            if progress:
                self.sign = str(self.now_s).encode()
            found += [(self.now_s, stall) for stall in self.watchdog.look({"beat": started_s})]
        return found


def test_who_makes_progress_is_left_alone() -> None:
    world = World()
    assert world.go(3_600, progress=True) == []
    assert world.asked == 0


def test_who_makes_none_is_stuck_once_its_limit_is_over() -> None:
    world = World()
    world.go(10, progress=True)
    began_s = world.now_s
    ((at_s, stall),) = world.go(70)
    assert (at_s - began_s, stall) == (60.0, Stall("beat", 60.0))


def test_limit_doubles_with_each_restart_that_did_not_help_and_progress_ends_that() -> None:
    world = World()
    world.go(2, progress=True)
    found = [at_s - 1_002.0 for at_s, _ in world.go(3 * 3_600)]
    assert found[:4] == [60.0, 180.0, 420.0, 900.0]
    gaps = [b - a for a, b in pairwise(found)]
    assert max(gaps) == LONGEST_LIMIT_S
    world.go(1, progress=True)
    ((at_s, _),) = world.go(61)
    assert at_s == world.now_s - 1.0


def test_nobody_is_stuck_while_redis_does_not_answer() -> None:
    world = World()
    world.go(2, progress=True)
    world.redis_there = False
    assert world.go(600) == []
    world.redis_there = True
    assert world.go(59) == []
    assert len(world.go(2)) == 1


def test_who_waits_for_postgresql_has_an_excuse_and_is_stuck_after_it() -> None:
    world = World()
    world.go(2, progress=True)
    world.why = "PostgreSQL does not answer"
    found = world.go(130)
    assert [stall.excuse for _, stall in found] == ["PostgreSQL does not answer"] * 2
    world.why = ""
    assert [stall.excuse for _, stall in world.go(60)] == [""]


def test_a_process_has_three_times_its_limit_from_its_start_to_its_first_sign() -> None:
    world = World()
    world.sign = None
    ((at_s, stall),) = world.go(200, started_s=1_010.0)
    assert (at_s - 1_010.0, stall.for_s) == (180.0, 180.0)
    world.go(1, progress=True, started_s=1_191.0)
    assert len(world.go(61, started_s=1_191.0)) == 1


def test_a_sign_that_expires_is_no_progress() -> None:
    world = World()
    world.go(5, progress=True)
    world.go(30)
    world.sign = None
    assert len(world.go(35)) == 1
