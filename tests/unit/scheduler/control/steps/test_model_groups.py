"""Nodes for several models."""

from core.controllers.fleet.shared_out import NodeView
from core.types import ClassDemand, Mode, ModeProfile, PartitionOption, Source
from scheduler.control.steps.model_groups import place

NODES = (NodeView("a", "A100-80GB", 4), NodeView("a", "A100-80GB", 8), NodeView("b", "A100-80GB", 4))


def option(rps, rate):
    profiles = {
        ("ALL", Mode("A100-80GB", tp)): ModeProfile(rate * tp, 100.0, None, None, None, Source.MODELLED)
        for tp in (4, 8)
    }
    return PartitionOption("whole", (ClassDemand("ALL", (rps,)),), profiles)


def test_node_has_one_model_and_the_busier_one_gets_more_when_two_are_placed():
    found = place(NODES, {"busy": option(10.0, 1.0), "calm": option(2.0, 1.0)}, {"busy": 8, "calm": 8})
    assert sorted(n for own in found.values() for n in own) == [0, 1, 2]
    assert 1 in found["busy"]
    assert len(found["calm"]) == 1


def test_nodes_are_left_free_when_every_request_finds_room():
    assert place(NODES, {"calm": option(1.0, 1.0)}, {"calm": 8}) == {"calm": (0,)}
