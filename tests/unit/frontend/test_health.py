from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import msgspec
import pytest
from django.contrib.auth.models import User

from frontend import attention, health, loop_health
from frontend.loop_health import LoopHealth
from pools import wire
from scheduler.models import LoopPause
from scheduler.selectors import LoopRun
from telemetry.selectors.frames import FeedState

from . import frames

NOW_S = 10_000.0
FEED = FeedState("East", "average", "static_csv", "a file", NOW_S - 3, "", None, NOW_S + 5)


def process(name: str, state: str = "running", started_s: float = 0.0) -> wire.ProcessRow:
    return wire.ProcessRow(name, 12, state, started_s, 0, f"{name}.log", "exit code 1")


def beat(name: str, age_s: float, period_s: float = 2.0) -> wire.Heartbeat:
    return wire.Heartbeat(name, NOW_S - age_s, period_s)


@pytest.mark.parametrize(
    ("row", "beats", "state"),
    [
        (process("gateway"), [beat("gateway", 1)], "running"),
        (process("gateway"), [beat("gateway", 7)], "late"),
        (process("gateway"), [], "late"),
        (process("gateway", started_s=NOW_S - 5), [], "running"),
        (process("node.a"), [], "late"),
        (process("web"), [], "running"),
        (process("gateway", "restarting"), [beat("gateway", 1)], "restarting"),
        (process("gateway", "stopped"), [beat("gateway", 1)], "dead"),
        (process("gateway.2"), [], "late"),
        (process("b.gateway.2"), [], "late"),
        (process("b.beat"), [], "late"),
        (process("b.beat"), [beat("b.beat", 1)], "running"),
        (process("b.web"), [], "running"),
        (process("simnode.beat"), [], "running"),
    ],
)
def test_process_state_follows_supervisor_and_heartbeat(row, beats, state):
    table = wire.ProcessTable(NOW_S, [row])
    (found,) = health.judge_processes(table, {b.process: b for b in beats}, NOW_S)
    assert found.state == state


def test_heartbeats_are_listed_when_no_supervisor_reports():
    found = health.judge_processes(None, {"gateway": beat("gateway", 1), "beat": beat("beat", 100)}, NOW_S)
    assert [(p.name, p.state) for p in found] == [("beat", "late"), ("gateway", "running")]


@pytest.mark.parametrize(
    ("age_s", "status", "state"),
    [(30, "applied", "on time"), (30, "infeasible", "infeasible"), (30, "failed", "failed"), (200, "applied", "late")],
)
def test_loop_is_late_after_two_periods(age_s, status, state):
    at = datetime.fromtimestamp(NOW_S - age_s, UTC)
    epoch = SimpleNamespace(due_at=at, finished_at=at, period_s=60.0, status=status, error="", solve_s=0.1)
    (found,) = loop_health.judge_loops([LoopRun("carbon", "chat", epoch, 60.0, 3)], NOW_S)
    assert (found.state, found.decision_id) == (state, 3)


@pytest.mark.parametrize(
    ("status", "looked_s_ago", "state"),
    [("held", 5, "on time"), ("held", 300, "late"), ("failed", 5, "on time"), ("infeasible", 5, "infeasible")],
)
def test_turn_that_leaves_no_epoch_counts_as_well(status, looked_s_ago, state):
    at, looked_at = (datetime.fromtimestamp(NOW_S - age_s, UTC) for age_s in (200, looked_s_ago))
    epoch = SimpleNamespace(due_at=at, finished_at=at, period_s=60.0, status=status, error="", solve_s=0.1)
    (found,) = loop_health.judge_loops([LoopRun("scale", "chat", epoch, 60.0, 3, looked_at=looked_at)], NOW_S)
    assert found.state == state


def test_loop_never_ran_when_it_has_no_epoch():
    (found,) = loop_health.judge_loops([LoopRun("carbon", "chat", None, 60.0)], NOW_S)
    assert found.state == "never ran"


def pause(since_s: float, until_s: float | None = None, ended_s: float | None = None) -> LoopPause:
    def at(at_s: float | None) -> datetime | None:
        return None if at_s is None else datetime.fromtimestamp(at_s, UTC)

    return LoopPause(
        loop="carbon", reason="new racks", created_at=at(since_s), expires_at=at(until_s), ended_at=at(ended_s)
    )


def old_epoch(status: str = "applied") -> SimpleNamespace:
    at = datetime.fromtimestamp(NOW_S - 900, UTC)
    return SimpleNamespace(due_at=at, finished_at=at, period_s=60.0, status=status, error="", solve_s=0.1)


@pytest.mark.parametrize("epoch", [old_epoch(), old_epoch("failed"), None])
def test_loop_that_only_advises_is_neither_late_nor_trouble(epoch):
    (found,) = loop_health.judge_loops([LoopRun("carbon", "chat", epoch, 60.0, only_advises=True)], NOW_S)
    assert found.words == "only advises"
    assert attention.items(well(loops=(found,)), frames.slo(target=0.9)) == ()


@pytest.mark.parametrize("epoch", [old_epoch(), old_epoch("failed"), old_epoch("infeasible"), None])
def test_paused_loop_says_by_whom_until_when_and_why(epoch):
    own = pause(NOW_S - 800, NOW_S + 900)
    own.created_by = User(username="ada")
    (found,) = loop_health.judge_loops([LoopRun("carbon", "chat", epoch, 60.0, pause=own)], NOW_S)
    assert (found.state, found.words) == ("paused", "paused by ada until 01 Jan 03:01 UTC: new racks")
    assert found.state in loop_health.WELL
    assert attention.items(well(loops=(found,)), frames.slo(target=0.9)) == ()


def test_pause_without_an_end_is_until_somebody_resumes_it():
    (found,) = loop_health.judge_loops([LoopRun("carbon", "chat", None, 60.0, pause=pause(NOW_S - 9))], NOW_S)
    assert found.words == "paused by the system until somebody resumes it: new racks"


@pytest.mark.parametrize(
    ("own", "state"),
    [
        (pause(NOW_S - 800, ended_s=NOW_S - 30), "on time"),
        (pause(NOW_S - 800, until_s=NOW_S - 30), "on time"),
        (pause(NOW_S - 800, ended_s=NOW_S - 300), "late"),
    ],
)
def test_loop_has_two_periods_after_a_pause_before_it_is_late(own, state):
    (found,) = loop_health.judge_loops([LoopRun("carbon", "chat", old_epoch(), 60.0, pause=own)], NOW_S)
    assert (found.state, found.pause) == (state, None)


def test_loop_that_its_policy_leaves_no_choice_says_so():
    run = LoopRun("carbon", "chat", None, 60.0, no_choice=True, policy="single_pool")
    (found,) = loop_health.judge_loops([run], NOW_S)
    assert (found.state, found.words) == ("idle", "does not run under single_pool")


CLOCK = LoopRun("clock", "chat", None, 1.0)


@pytest.mark.parametrize(
    ("last_at_s", "ready", "state"),
    [(NOW_S - 10, 2, "on time"), (NOW_S - 200, 2, "late"), (NOW_S - 200, 0, "no instance"), (None, 2, "never ran")],
)
def test_clock_loop_is_judged_only_when_an_instance_is_ready(last_at_s, ready, state):
    (found,) = loop_health.judge_clocks([CLOCK], last_at_s, ready, NOW_S)
    assert (found.service, found.state) == ("all", state)


def test_paused_clock_loop_stands_by_itself_and_the_others_are_judged_without_it():
    paused = replace(CLOCK, service="code", pause=pause(NOW_S - 800))
    own, others = loop_health.judge_clocks([CLOCK, paused], NOW_S - 200, 1, NOW_S)
    assert (own.service, own.state) == ("code", "paused")
    assert (others.service, others.state) == ("all others", "late")
    (alone,) = loop_health.judge_clocks([paused], NOW_S - 200, 0, NOW_S)
    assert alone == own


def test_clock_loop_is_idle_when_no_policy_moves_clocks():
    (found,) = loop_health.judge_clocks([replace(CLOCK, no_choice=True)], None, 0, NOW_S)
    assert found.state == "idle"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "fresh"),
        ({"last_ok_s": None}, "never"),
        ({"last_ok_s": None, "last_error": "no such zone"}, "failing"),
        ({"last_error": "timed out", "last_error_s": NOW_S - 1}, "failing"),
        ({"last_ok_s": NOW_S - 100}, "stale"),
        ({"known_until_s": NOW_S - 200}, "no value"),
    ],
)
def test_feed_state(changes, state):
    assert health.judge_feed(replace(FEED, **changes), 5.0, NOW_S) == state


def test_node_is_silent_when_its_agent_has_not_spoken():
    assert health.judge_node("a", None, NOW_S).state == "silent"
    assert health.judge_node("a", wire.AgentState("a", "b", NOW_S - 60, 1, []), NOW_S).state == "silent"
    assert health.judge_node("a", wire.AgentState("a", "b", NOW_S - 1, 1, []), NOW_S).state == "reporting"


def well(**changes: object) -> health.Health:
    return replace(health.Health(NOW_S, "", False, ingest=health.Ingest(0, 0, 1.0)), **changes)


def test_nodes_with_something_the_matter_come_first_when_not_all_are_shown():
    well = [health.NodeHealth(f"n{n:03}", "reporting", 0.0, {}, (), "") for n in range(health.NODES_SHOWN)]
    silent = health.NodeHealth("z1", "silent", None, {}, (), "")
    failed = health.NodeHealth("z2", "reporting", 0.0, {}, ("an instance",), "")
    state = health.Health(0.0, "", False, nodes=(*well, silent, failed))
    assert state.nodes_first == (silent, failed, *well[:-2])


def test_nothing_needs_attention_when_all_is_well():
    assert attention.items(well(), frames.slo(target=0.9)) == ()


def test_worst_comes_first_and_each_item_says_what_to_do():
    dead = health.ProcessHealth("gateway", "dead", None, None, 3, None, None, "exit code 1", "g.log")
    infeasible = LoopHealth("carbon", "chat", "infeasible", 60.0, NOW_S, "infeasible", "class LL", 0.1, 9)
    silent = [health.NodeHealth(name, "silent", None, {}, (), "") for name in ("a", "b")]
    state = well(
        processes=(dead,),
        loops=(infeasible,),
        nodes=tuple(silent),
        feeds=(health.FeedHealth(replace(FEED, last_error="timed out"), "failing"),),
        ingest=health.Ingest(900, 0, 40.0),
    )
    found = attention.items(state, frames.slo(target=0.99))
    assert [item.level for item in found] == ["bad", "bad", "bad", "warn", "warn", "warn"]
    assert all(item.step for item in found)
    texts = " | ".join(item.text for item in found)
    for piece in ("gateway is dead", "class LL", "2 nodes are silent: a, b", "timed out", "900 batches wait", "TTFT"):
        assert piece in texts
    assert next(item for item in found if "carbon loop" in item.text).decision_id == 9


def test_nodes_are_not_accused_when_redis_is_what_is_silent():
    silent = (health.NodeHealth("a", "silent", None, {}, (), ""),)
    found = attention.items(well(redis_error="ConnectionError: refused", nodes=silent), frames.slo(target=0.9))
    assert ["Redis" in item.text for item in found] == [True]


def test_node_whose_agent_is_too_old_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setattr(health.agent_versions, "LEAST", "0.2.0")
    state = wire.AgentState("n1", "b", NOW_S, 1, [], "one GPU is silent", version="0.1.5")
    found = health.judge_node("n1", state, NOW_S)
    assert found.error.startswith(
        "its agent is of GreenServe 0.1.5, and this control plane works with 0.2.0 and later: "
    )
    assert found.error.endswith("start its agent again; one GPU is silent")
    assert not found.calm
    assert health.judge_node("n1", msgspec.structs.replace(state, version="0.2.0", error=""), NOW_S).calm
