"""Model partitions of like operators: mu-Serve's Algorithm 1, and cuts into as many stages as there are devices.

Algorithm 1 (section 3.1) groups neighbouring operators of like sensitivity into clusters, which are what is placed, so
that no partition mixes operators that suffer from a low clock with those that do not. As printed it compares |score|
minus the mean, keeps the mean of the old cluster for a new one, counts the head twice and loses the last cluster. What
is meant: |score - mean of the cluster|, a mean of its own for each cluster, every operator once.

A model has far more clusters than a group has devices. AlpaServe's inter-operator pass, which mu-Serve runs over
clusters, cuts them into stages; here by the least latency of the slowest stage, in exact dynamic programming.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from core.algorithms.placement.sensitivity import Operator

DEFAULT_THRESHOLD = 0.1  # THRES; the paper gives no figure


@dataclass(frozen=True, slots=True)
class OperatorGroup:
    """Neighbouring operators of a model that are placed together."""

    model: str
    name: str
    operators: tuple[Operator, ...]

    @property
    def latency_s(self) -> float:
        return sum(operator.latency_s for operator in self.operators)

    @property
    def memory_bytes(self) -> float:
        return sum(operator.memory_bytes for operator in self.operators)

    @property
    def sensitivity(self) -> float:
        """The score of the whole: the mean of its operators' scores, weighted.

        The paper weighs by operator count and tensor dimensions; both act through the latency, and weighted by that the
        mean is exactly the score of the summed latency.
        """
        return weighted_mean(self.operators)


def weighted_mean(parts: Sequence[Operator | OperatorGroup]) -> float:
    """Returns the score of parts that run one after another: the mean of theirs by latency."""
    total_s = sum(part.latency_s for part in parts)
    if total_s <= 0.0:
        return 0.0
    return sum(part.latency_s * part.sensitivity for part in parts) / total_s


def clusters(operators: Sequence[Operator], threshold: float = DEFAULT_THRESHOLD) -> tuple[tuple[Operator, ...], ...]:
    """Applies Algorithm 1: an operator joins the cluster before it when its score is within `threshold` of that one's
    mean.

    Raises:
        ValueError: The threshold is not above 0.
    """
    if threshold <= 0.0:
        raise ValueError("the threshold of clusters is above 0")
    found: list[list[Operator]] = []
    total = 0.0  # of the last cluster's scores
    for operator in operators:
        if found and abs(operator.sensitivity - total / len(found[-1])) < threshold:
            found[-1].append(operator)
            total += operator.sensitivity
        else:
            found.append([operator])
            total = operator.sensitivity
    return tuple(tuple(cluster) for cluster in found)


def stages(
    model: str,
    clustered: Sequence[Sequence[Operator]],
    count: int,
    memory_bytes: float = float("inf"),
) -> tuple[OperatorGroup, ...] | None:
    """Cuts a model into at most `count` partitions of neighbouring clusters, the slowest of which is as fast as can be.

    None: no such cut keeps each of them within `memory_bytes`. Of equally fast cuts the one with the fewest stages.

    Raises:
        ValueError: There is no cluster, or no device.
    """
    n = len(clustered)
    if n == 0 or count < 1:
        raise ValueError("stages need at least one cluster and one device")
    slow = np.concatenate(([0.0], np.cumsum([sum(o.latency_s for o in cluster) for cluster in clustered])))
    memory_before = np.concatenate(([0.0], np.cumsum([sum(o.memory_bytes for o in cluster) for cluster in clustered])))
    # cost[i, j]: of a stage of clusters i..j-1. Sums of floats may exceed a limit that they meet: 1e-9 of slack.
    cost = slow[None, :] - slow[:, None]
    wrong = (np.arange(n + 1)[:, None] >= np.arange(n + 1)) | (
        memory_before[None, :] - memory_before[:, None] > memory_bytes * (1 + 1e-9)
    )
    cost = np.where(wrong, np.inf, cost)
    best, cuts = cost[0], [np.zeros(n + 1, dtype=np.int64)]
    ends = [best[n]]
    for _ in range(1, min(count, n)):
        slowest = np.maximum(best[:, None], cost)  # stages up to i, then one more up to j
        cuts.append(slowest.argmin(axis=0))
        best = slowest.min(axis=0)
        ends.append(best[n])
    if not np.isfinite(min(ends)):
        return None
    used = int(np.argmin(ends)) + 1
    bounds = [n]
    for stage in range(used - 1, 0, -1):
        bounds.append(int(cuts[stage][bounds[-1]]))
    bounds = [0, *reversed(bounds)]
    return tuple(
        OperatorGroup(model, f"{model}[{k}]", tuple(o for cluster in clustered[a:b] for o in cluster))
        for k, (a, b) in enumerate(pairwise(bounds))
    )
