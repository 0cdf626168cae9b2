"""The host energy that a site's nodes entered, shared among the energy entries of their GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from core.accounting.host_shares import HostShares, share_hosts
from pools.models import Gpu, Site
from telemetry.ledger.energy_entries import INTERVAL_S
from telemetry.storage import copying

Ints = NDArray[np.int64]

HOSTS_SQL = f"""
SELECT node_id, floor(extract(epoch FROM start_at) / {INTERVAL_S})::bigint, sum(energy_uj)::bigint
FROM telemetry_hostentry WHERE site_id = %(site)s AND start_at >= %(start)s AND start_at < %(end)s GROUP BY 1, 2
"""
HOSTS = {"node": copying.BIGINT, "interval": copying.BIGINT, "energy_uj": copying.BIGINT}


def of_entries(site: Site, span: tuple[datetime, datetime], entries: Mapping[str, Ints]) -> HostShares:
    """Reads the hosts of a site in a span. `entries`: those of its GPUs in it, by column."""
    hosts = copying.read(HOSTS_SQL, {"site": site.pk, "start": span[0], "end": span[1]}, HOSTS)
    if not len(hosts["node"]):
        nothing = np.zeros(len(entries["gpu"]), dtype=np.int64)
        return HostShares(nothing, nothing, hosts["interval"], hosts["energy_uj"])
    ids, place = np.unique(entries["gpu"], return_inverse=True)
    of_node = dict(Gpu.objects.filter(pk__in=ids.tolist()).values_list("pk", "node_id"))
    node = np.array([of_node[pk] for pk in ids.tolist()], dtype=np.int64)[place]
    return share_hosts(node, entries, hosts)
