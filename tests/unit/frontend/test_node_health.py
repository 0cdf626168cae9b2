"""What health pages say of a node that is well and cannot do everything."""

from __future__ import annotations

from frontend import health
from pools import wire


def test_instances_that_a_gateway_does_not_reach_are_their_nodes_unless_the_gateway_is_late() -> None:
    lost = wire.UnreachableEngine("u1", "a", "http://10.0.0.5:18400", 70.0, "the connection is refused")
    beats = {
        name: wire.Heartbeat(name, at_s, 2.0, unreachable=[lost])
        for name, at_s in (("gateway.2", 99.0), ("late", 80.0))
    }
    well = wire.AgentState("a", "b", 99.0, 1, [])
    a, b = health.judge_nodes(["a", "b"], health.Messages(beats=beats, agents={"a": well}), 100.0)
    assert a.unreachable == {
        "u1": "gateway.2 does not reach http://10.0.0.5:18400: the connection is refused, for 30 s"
    }
    assert (a.state, a.calm, b.unreachable) == ("reporting", False, {})


def test_node_may_be_set_to_only_measure_without_being_at_fault() -> None:
    agent = wire.AgentState("a", "b", 99.0, 1, [], measure_only="no clock actuator", notices=["no energy counter"])
    node = health.judge_node("a", agent, 100.0)
    assert (node.state, node.error) == ("reporting", "")
    assert node.notes == "measure only: no clock actuator; no energy counter"
