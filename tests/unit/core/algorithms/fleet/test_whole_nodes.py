"""Whole nodes for services: by need, weight, floor and ceiling, and one for each wherever that is possible."""

from __future__ import annotations

import pytest

from core.algorithms.fleet.gpu_parts import Share
from core.algorithms.fleet.sharing import NodeGpus
from core.algorithms.fleet.whole_nodes import whole_nodes

A = "A100-80GB"


def share(nodes, needs, able=lambda name, node: True, lot=lambda node: node.site, **shares: Share):
    return whole_nodes(nodes, needs, lambda name, node: float(node.gpus) if able(name, node) else 0.0, lot, shares)


def test_nodes_of_one_site_go_to_the_service_that_is_carried_least():
    nodes = [NodeGpus("here", f"n{n}", A, 8) for n in range(6)]
    found = share(nodes, {"chat": 4.0, "code": 1.0})
    assert {name: len(own) for name, own in found.items()} == {"chat": 5, "code": 1}


@pytest.mark.parametrize(
    ("code", "nodes_of_code"),
    [(Share(), 3), (Share(weight=2.0), 4), (Share(min_gpus=40), 5), (Share(max_gpus=16), 2), (Share(0.5), 2)],
)
def test_whole_nodes_go_by_weight_floor_and_ceiling(code, nodes_of_code):
    nodes = [NodeGpus("here", f"n{n}", A, 8) for n in range(6)]
    found = share(nodes, {"chat": 4.0, "code": 4.0}, code=code)
    assert {name: len(own) for name, own in found.items()} == {"chat": 6 - nodes_of_code, "code": nodes_of_code}


def test_services_take_sites_of_their_own_when_there_are_several():
    nodes = [NodeGpus("large", "n0", A, 8), NodeGpus("large", "n1", A, 8), NodeGpus("small", "n2", A, 4)]
    found = share(nodes, {"chat": 1.0, "code": 4.0})
    assert found == {"code": tuple(nodes[:2]), "chat": (nodes[2],)}


def test_service_without_a_node_is_named():
    with pytest.raises(ValueError, match="code"):
        share([NodeGpus("here", "n0", A, 8)], {"chat": 4.0, "code": 1.0})
    with pytest.raises(ValueError, match="code"):
        share(
            [NodeGpus("here", f"n{n}", A, 8) for n in range(2)],
            {"chat": 4.0, "code": 1.0},
            able=lambda name, node: name == "chat",
        )


def test_service_that_fits_on_one_node_only_is_given_it():
    """The node was the largest, and went to who needs most."""
    nodes = [NodeGpus("here", "large", A, 8), NodeGpus("here", "small", A, 4)]
    found = share(nodes, {"chat": 9.0, "code": 0.1}, able=lambda name, node: name == "chat" or node.node == "large")
    assert found == {"chat": (nodes[1],), "code": (nodes[0],)}


def test_service_that_fits_at_one_site_only_finds_room_there():
    """Others had chosen the site, which has most, though they fit elsewhere too."""
    nodes = [NodeGpus("large", "n0", A, 8), NodeGpus("small", "n1", A, 4), NodeGpus("small", "n2", A, 4)]
    able = {"chat": {"large", "small"}, "code": {"large"}, "mail": {"small"}}
    needs = {"chat": 9.0, "code": 0.1, "mail": 0.1}
    found = share(nodes, needs, able=lambda name, node: node.site in able[name])
    assert {name: [own.site for own in has] for name, has in found.items()} == {
        "chat": ["small"],
        "code": ["large"],
        "mail": ["small"],
    }
