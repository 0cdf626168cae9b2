"""mu-Serve: clocks by the slack that latencies leave, weighted by sensitivity; placement; shortest jobs first by
prediction. And AlpaServe, which it is measured against.
"""

from core.simulator.policies.muserve.muserve_policy import READS, MuServeConfig, begin, of

__all__ = ["READS", "MuServeConfig", "begin", "of"]
