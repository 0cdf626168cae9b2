"""The product's controllers inside the simulator: a policy's name becomes a first fleet, pools and loops."""

from __future__ import annotations

from core.simulator.policies.config import FreeshConfig, ThresholdConfig, read_overheads
from core.simulator.policies.policy_registry import POLICIES, PolicyConfig, build, put_over, read_policy
from core.simulator.policies.static import StaticConfig, with_rules
from core.simulator.policies.world import (
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
    "put_over",
    "read_overheads",
    "read_policy",
    "with_rules",
]
