"""DynamoLLM (arXiv 2408.00741): pools by request class, nodes each half hour, TP degrees each five minutes, clocks each
five seconds, routing by predicted energy; and its baselines, each with one of the knobs.
"""

from __future__ import annotations

from core.simulator.policies.dynamollm.config import READS, DynamollmConfig, of
from core.simulator.policies.dynamollm.loops import Dynamollm
from core.simulator.policies.world import Plan, World

__all__ = ["READS", "DynamollmConfig", "begin", "of"]


def begin(config: DynamollmConfig, world: World) -> Plan:
    """Raises SimulationError when the world is not what the paper's system is for."""
    return Dynamollm(config, world).begin()
