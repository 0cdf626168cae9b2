"""The state of each control loop, judged from epochs, clock decisions and pauses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from scheduler import selectors
from scheduler.models import Epoch, LoopPause
from scheduler.selectors import LoopRun

LATE_PERIODS = 2.0
CLOCK_QUIET_S = 90.0  # the agents report each half minute at least while an instance is ready
WELL = frozenset({"on time", "idle", "no instance", "paused", "only advises"})  # nothing is the matter with these


@dataclass(frozen=True, slots=True)
class PauseNow:
    """A pause in force. `by`: a user's name, or "the system"; `until_s` None: until somebody resumes the loop."""

    by: str
    reason: str
    since_s: float
    until_s: float | None

    @property
    def words(self) -> str:
        """Returns a sentence without its subject, with the time in the reader's zone."""
        until = "somebody resumes it"
        if self.until_s is not None:
            until = datetime.fromtimestamp(self.until_s, timezone.get_current_timezone()).strftime("%d %b %H:%M %Z")
        return f"paused by {self.by} until {until}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LoopHealth:
    """state: on time | late | never ran | infeasible | failed | paused | idle (its policy leaves it no choice) |
    no instance (there is none whose clock could be set) | only advises (no loop of the service has acted yet).

    `policy`: of its service; empty for the clock loops of several services. `pause`: while it is paused.
    """

    kind: str
    service: str
    state: str
    period_s: float
    last_at_s: float | None
    status: str
    error: str
    solve_s: float | None
    decision_id: int | None = None
    policy: str = ""
    pause: PauseNow | None = None

    @property
    def name(self) -> str:
        return f"{self.kind} of {self.service}"

    @property
    def words(self) -> str:
        """Returns its state, and why it does not run if it does not."""
        if self.pause is not None:
            return self.pause.words
        return f"does not run under {self.policy}" if self.state == "idle" and self.policy else self.state


def gather(now_s: float) -> tuple[LoopHealth, ...]:
    """Returns the state of all loops. Makes five queries."""
    runs = selectors.loop_runs()
    slow, clocks = ([run for run in runs if (run.kind == "clock") is of_clocks] for of_clocks in (False, True))
    acting = [run.service for run in clocks if not run.no_choice and pause_now(run.pause, now_s) is None]
    decided_at = selectors.newest_clock_decision_at()
    last_at_s = decided_at.timestamp() if decided_at else None
    return (*judge_loops(slow, now_s), *judge_clocks(clocks, last_at_s, selectors.ready_count(acting), now_s))


def pause_now(pause: LoopPause | None, now_s: float) -> PauseNow | None:
    """Returns a pause that is in force; None: there is none, or it is over."""
    if pause is None or _over_s(pause) <= now_s:
        return None
    by = str(pause.created_by.get_username()) if pause.created_by is not None else "the system"
    until_s = pause.expires_at.timestamp() if pause.expires_at else None
    return PauseNow(by, pause.reason, pause.created_at.timestamp(), until_s)


def _over_s(pause: LoopPause | None) -> float:
    """Returns when a pause was or is over; of no pause at all that is long ago."""
    if pause is None:
        return -math.inf
    return pause.over_at.timestamp() if pause.over_at else math.inf


def judge_loops(runs: Iterable[LoopRun], now_s: float) -> tuple[LoopHealth, ...]:
    """A slow loop is late when its newest epoch, its newest turn, and its last pause are all more than two periods
    ago."""
    found = []
    for run in runs:
        epoch, pause = run.epoch, pause_now(run.pause, now_s)
        looked_s = run.looked_at.timestamp() if run.looked_at else -math.inf
        found.append(
            LoopHealth(
                kind=run.kind,
                service=run.service,
                state="paused" if pause else _state(run, looked_s, now_s),
                period_s=run.period_s,
                last_at_s=max(epoch.finished_at.timestamp(), looked_s) if epoch else None,
                status=epoch.status if epoch else "",
                error=epoch.error if epoch else "",
                solve_s=epoch.solve_s if epoch else None,
                decision_id=run.decision_id,
                policy=run.policy,
                pause=pause,
            )
        )
    return tuple(found)


def _state(run: LoopRun, looked_s: float, now_s: float) -> str:
    """Returns the state of a slow loop that is not paused."""
    epoch = run.epoch
    if run.only_advises:
        return "only advises"
    if run.no_choice and not (epoch and epoch.status == Epoch.Status.FAILED):
        return "idle"
    if epoch is None:
        return "never ran"
    since_s = max(epoch.due_at.timestamp(), looked_s, _over_s(run.pause))
    if now_s - since_s > LATE_PERIODS * run.period_s + epoch_slack_s(epoch.solve_s):
        return "late"
    overtaken = epoch.status == Epoch.Status.FAILED and looked_s > epoch.finished_at.timestamp()
    return epoch.status if epoch.status in ("infeasible", "failed") and not overtaken else "on time"


def epoch_slack_s(solve_s: float | None) -> float:
    """An epoch is stored when it is solved, so a long solve is no lateness."""
    return 5.0 + (solve_s or 0.0)


def judge_clocks(runs: Sequence[LoopRun], last_at_s: float | None, ready: int, now_s: float) -> tuple[LoopHealth, ...]:
    """Returns the state of the clock loops: those that are paused by themselves, all others together.

    They run in the agents, which report changes and, at times, how long none came.

    Args:
        last_at_s: When one was last reported.
        ready: The ready instances of services whose clock loops run.
    """
    found, acting = [], []
    for run in runs:
        if (pause := pause_now(run.pause, now_s)) is not None:
            row = LoopHealth("clock", run.service, "paused", run.period_s, None, "", "", None, None, run.policy, pause)
            found.append(row)
        elif not run.no_choice:
            acting.append(run)
    if len(found) == len(runs):
        return tuple(found)
    since_s = max(-math.inf if last_at_s is None else last_at_s, *(_over_s(run.pause) for run in acting), -math.inf)
    if not acting:
        state = "idle"
    elif now_s - since_s <= CLOCK_QUIET_S:
        state = "on time"
    elif ready == 0:
        state = "no instance"
    else:
        state = "never ran" if last_at_s is None else "late"
    others = "all others" if found else "all"
    period_s = min(run.period_s for run in acting or runs)
    return (*found, LoopHealth("clock", others, state, period_s, last_at_s, "", "", None))
