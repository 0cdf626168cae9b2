"""Instances that nodes have room for."""

from __future__ import annotations

import pytest

from core.controllers.fleet.shared_out import NodeView
from core.observations.fleet.site_room import room
from core.types import Mode

NODES = [NodeView("east", "A100-80GB", 4), NodeView("east", "A100-80GB", 8), NodeView("west", "A100-80GB", 8)]


@pytest.mark.parametrize(
    ("tp", "taken", "expected"), [(4, 0, 3), (8, 0, 1), (8, 1, 1), (4, 1, 2), (8, 5, 0), (4, 12, 0), (2, 5, 3)]
)
def test_instances_fit_on_single_nodes_and_the_first_ones_give_up_gpus(tp: int, taken: int, expected: int) -> None:
    assert room(NODES, "east", Mode("A100-80GB", tp), taken) == expected


def test_other_types_and_sites_have_no_room() -> None:
    assert room(NODES, "east", Mode("H100-SXM-80GB", 4)) == room(NODES, "north", Mode("A100-80GB", 4)) == 0
