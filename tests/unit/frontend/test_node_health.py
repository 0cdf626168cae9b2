"""What health pages say of a node that is well and cannot do everything."""

from __future__ import annotations

from frontend import health
from pools import wire


def test_node_may_be_set_to_only_measure_without_being_at_fault() -> None:
    agent = wire.AgentState("a", "b", 99.0, 1, [], measure_only="no clock actuator", notices=["no energy counter"])
    node = health.judge_node("a", agent, 100.0)
    assert (node.state, node.error) == ("reporting", "")
    assert node.notes == "measure only: no clock actuator; no energy counter"
