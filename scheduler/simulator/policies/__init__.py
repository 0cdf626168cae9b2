"""The product's controllers inside the simulator: a policy's name becomes a first fleet, pools and loops."""

from __future__ import annotations

from scheduler.simulator.policies.config import (
    POLICIES,
    STATIC,
    FreeshConfig,
    PolicyConfig,
    StaticConfig,
    ThresholdConfig,
    read_overheads,
    read_policy,
)
from scheduler.simulator.policies.freesh import Freesh
from scheduler.simulator.policies.threshold import Threshold
from scheduler.simulator.policies.world import (
    CellLoad,
    ClassInfo,
    Member,
    PartitionInfo,
    Plan,
    PoolPlan,
    ServiceInfo,
    SiteInfo,
    World,
    declared_loads,
)

__all__ = [
    "POLICIES",
    "STATIC",
    "CellLoad",
    "ClassInfo",
    "FreeshConfig",
    "Member",
    "PartitionInfo",
    "Plan",
    "PolicyConfig",
    "PoolPlan",
    "ServiceInfo",
    "SiteInfo",
    "StaticConfig",
    "ThresholdConfig",
    "World",
    "build",
    "declared_loads",
    "read_overheads",
    "read_policy",
]


def build(config: ThresholdConfig | FreeshConfig, world: World) -> Plan:
    """The first fleet and the loops of a policy. Static policies need none: the scenario's groups are their fleet.

    Raises:
        SimulationError: The world does not fit together, or its first instances find no GPUs.
    """
    if isinstance(config, ThresholdConfig):
        return Threshold(config, world).begin()
    return Freesh(config, world).begin()
