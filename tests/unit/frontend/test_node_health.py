"""What health pages say of a node that is well and cannot do everything."""

from __future__ import annotations

from datetime import UTC, datetime

from frontend import health
from pools import wire
from pools.server_states import Phase, ServerState


def test_instances_that_a_gateway_does_not_reach_are_their_nodes_unless_the_gateway_is_late() -> None:
    lost = wire.UnreachableEngine("u1", "a", "http://10.0.0.5:18400", 70.0, "the connection is refused")
    beats = {
        name: wire.Heartbeat(name, at_s, 2.0, unreachable=[lost])
        for name, at_s in (("gateway.2", 99.0), ("late", 80.0))
    }
    well = wire.AgentState("a", "b", 99.0, 1, [])
    a, b = health.judge_nodes(["a", "b"], health.Messages(beats=beats, agents={"a": well}), 100.0, {})
    assert a.unreachable == {
        "u1": "gateway.2 does not reach http://10.0.0.5:18400: the connection is refused, for 30 s"
    }
    assert (a.state, a.calm, b.unreachable) == ("reporting", False, {})


def test_node_may_be_set_to_only_measure_without_being_at_fault() -> None:
    agent = wire.AgentState("a", "b", 99.0, 1, [], measure_only="no clock actuator", notices=["no energy counter"])
    node = health.judge_node("a", agent, 100.0)
    assert (node.state, node.error) == ("reporting", "")
    assert node.notes == "measure only: no clock actuator; no energy counter"


def test_node_that_is_off_by_plan_is_off_and_not_silent() -> None:
    since = datetime.fromtimestamp(40.0, UTC)

    def judged(phase: Phase) -> tuple[str, str, bool]:
        servers = {"a": ServerState(1, "a", phase, since, 300.0, "measured")}
        (found,) = health.judge_nodes(["a"], health.Messages(), 100.0, servers)
        return found.state, found.server, found.calm

    assert judged(Phase.OFF) == ("off", "off (by plan), boots in 5 min", True)
    assert judged(Phase.BOOTS) == ("off", "boots, ready in 4 min", True)
    (late,) = health.judge_nodes(
        ["a"], health.Messages(), 941.0, {"a": ServerState(1, "a", Phase.BOOTS, since, 300.0, "measured")}
    )
    assert (late.state, late.server, late.calm) == ("silent", "late to boot", False)
