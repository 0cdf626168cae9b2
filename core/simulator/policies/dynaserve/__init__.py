"""DynaServe (arXiv 2504.09285): requests split at any token over two instances, batches that keep the gap between
tokens; colocation and disaggregation of prefill and decode are its two ends.
"""

from core.simulator.policies.dynaserve.dynaserve_policy import READS, DynaserveConfig, begin, of

__all__ = ["READS", "DynaserveConfig", "begin", "of"]
