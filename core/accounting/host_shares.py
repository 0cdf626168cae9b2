"""Shares a node's host energy among what ran on its GPUs, in each interval in proportion to their energy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.accounting.allocation import share_out
from core.accounting.grouping import Groups

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HostShares:
    """The host's joules of each energy entry of GPUs, and those that no entry takes.

    Attributes:
        host_uj: Of each entry; 0 where its node's host was not metered.
        known_uj: The entry's own energy where its node's host was metered, else 0.
        alone_interval, alone_uj: Intervals and joules of hosts none of whose GPUs was metered then.
    """

    host_uj: Ints
    known_uj: Ints
    alone_interval: Ints
    alone_uj: Ints


def share_hosts(node: Ints, entries: Mapping[str, Ints], hosts: Mapping[str, Ints]) -> HostShares:
    """Cuts each host's interval (uJ) among its node's entries, by their energy, or by GPU time where all of it is 0.

    `host_uj` and `alone_uj` add up to the hosts' joules exactly. The order of rows changes nothing.

    Args:
        node: Of each entry, (entries,).
        entries: Columns of energy entries: gpu, interval, kind, instance, energy_uj, gpu_us.
        hosts: Columns node, interval and energy_uj: each (node, interval) once.
    """
    count = len(node)
    which = np.concatenate([node, hosts["node"]]), np.concatenate([entries["interval"], hosts["interval"]])
    cells = Groups.by(*which)
    uj = np.concatenate([np.zeros(count, dtype=np.int64), hosts["energy_uj"]])
    total = cells.sum(uj)
    metered = cells.max(np.concatenate([np.zeros(count, dtype=np.int64), np.ones(len(hosts["node"]), dtype=np.int64)]))
    if not len(total):
        return HostShares(uj, uj, uj, uj)
    key_node, key_interval = (cells.key(column) for column in which)
    cell = _places(key_node, key_interval, node, entries["interval"])

    order = np.lexsort((entries["instance"], entries["kind"], entries["gpu"], cell))
    energy, gpu_us = entries["energy_uj"][order], entries["gpu_us"][order]
    held = np.bincount(cell, minlength=len(total)).astype(np.int64)
    used = np.zeros(len(total), dtype=np.int64)
    np.add.at(used, cell, entries["energy_uj"])
    weight = np.where(used[cell[order]] > 0, energy, np.maximum(gpu_us, 1))
    host_uj = np.zeros(count, dtype=np.int64)
    host_uj[order] = share_out(total, cell[order], weight)
    alone = (held == 0) & (metered > 0)
    known_uj = np.where(metered[cell] > 0, entries["energy_uj"], 0)
    return HostShares(host_uj, known_uj, key_interval[alone], total[alone])


def _places(key_node: Ints, key_interval: Ints, node: Ints, interval: Ints) -> Ints:
    """Returns the place of each (node, interval) among the keys, which are sorted by both and have all of them."""
    low = int(key_interval.min())
    width = int(key_interval.max()) - low + 1
    keys = key_node * width + (key_interval - low)
    return np.searchsorted(keys, node * width + (interval - low)).astype(np.int64)
