"""What a placement of live models is given: a service at its ceiling has no room for one more replica."""

from __future__ import annotations

import pytest

from core.algorithms.fleet.gpu_parts import Share
from core.algorithms.placement.own_gpus import ModelLoad
from core.controllers.fleet.shared_out import NodeView
from core.observations.fleet.placement_given import observation
from core.policy.tuning import PlacementTuning
from core.types import Mode

GPU, ONE = "A100-80GB", Mode("A100-80GB", 1)


@pytest.mark.parametrize(("max_gpus", "rooms"), [(None, 1), (3, 1), (2, 0)])
def test_starved_model_gets_no_replica_above_its_services_ceiling(max_gpus: int | None, rooms: int) -> None:
    share = Share(max_gpus=max_gpus)
    loads = [ModelLoad(f"chat/{name}", 1.0, {ONE: 1.0}, frozenset({"a"}), "chat", share) for name in ("SS", "LL")]
    present = {("a", model.name, ONE): 1 for model in loads}
    found = observation(0.0, [NodeView("a", GPU, 8)], loads, present, {"chat/LL"}, PlacementTuning())
    assert len(found.room["chat/LL"]) == rooms
