"""GreenServe's own policy: the papers' ideas together, each where it pays off."""

from __future__ import annotations

from core.simulator.policies.greenserve.config import READS, GreenserveConfig, of
from core.simulator.policies.greenserve.loops import begin

__all__ = ["READS", "GreenserveConfig", "begin", "of"]
