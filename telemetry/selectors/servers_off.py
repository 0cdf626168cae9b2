"""Reads how long GPUs were off by plan: they drew nothing then, as their servers' power ports have said.

A server that was asked to go off, or that boots, may draw something that nobody metered: that stays unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ._sql import rows, span
from .frames import TimeRange

Floats = NDArray[np.float64]

OFF_SQL = """
SELECT c.site_id, g.node_id, extract(epoch FROM p.off_at)::float8 AS off_s,
       extract(epoch FROM p.on_asked_at)::float8 AS on_s, count(*)::int AS gpus
FROM pools_powercycle p JOIN pools_node n ON n.id = p.node_id JOIN pools_cluster c ON c.id = n.cluster_id
JOIN pools_gpu g ON g.node_id = n.id JOIN telemetry_metermark m ON m.gpu_id = g.id
WHERE p.off_at < %(end)s AND (p.on_asked_at IS NULL OR p.on_asked_at > %(start)s)
  AND (%(site)s::bigint IS NULL OR c.site_id = %(site)s) AND (%(node)s::bigint IS NULL OR n.id = %(node)s)
GROUP BY p.id, c.site_id, g.node_id
"""


def gpu_seconds(time_range: TimeRange, site_id: int | None = None, node_id: int | None = None) -> Mapping[int, Floats]:
    """Returns the seconds that metered GPUs were off in each bucket, all of a site together, by its key. One query."""
    starts_s, ends_s = np.array(time_range.starts_s), np.array(time_range.ends_s)
    found: dict[int, Floats] = defaultdict(lambda: np.zeros(time_range.count))
    for row in rows(OFF_SQL, {**span(time_range), "site": site_id, "node": node_id}):
        until_s = np.inf if row.on_s is None else row.on_s
        off_s = np.maximum(0.0, np.minimum(ends_s, until_s) - np.maximum(starts_s, row.off_s))
        found[row.site_id] += row.gpus * off_s
    return found
