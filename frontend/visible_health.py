"""Cuts the fleet's state down to what somebody may see whose role is for some sites, as `visibility` has it.

Counts are the fleet's for everybody; names, words and links are of one's own sites.
"""

from __future__ import annotations

from dataclasses import replace

from pools.access import rights
from pools.access.rights import AnyUser
from pools.models import Node, Pool
from scheduler.operations import visibility

from .health import Health

OF_NODES = ("node.", "simnode.")  # processes that are called after their node


def site_names(user: AnyUser) -> frozenset[str] | None:
    """Returns the names of the sites that this person may see; None: all of them, without a query."""
    return None if rights.everywhere(user) else frozenset(rights.sites_of(user).values_list("name", flat=True))


def pool_ids(user: AnyUser) -> list[int] | None:
    """Returns the pools at these sites; None: all pools, without a query."""
    if rights.everywhere(user):
        return None
    return list(Pool.objects.filter(site__in=rights.sites_of(user)).values_list("pk", flat=True))


def health(user: AnyUser, state: Health) -> Health:
    """Removes other sites' nodes, processes and feeds, and the errors and links of loops of their services."""
    sites = site_names(user)
    if sites is None:
        return state
    nodes = set(Node.objects.filter(cluster__site__name__in=sites).values_list("name", flat=True))
    whole = {"all", *visibility.whole_services(user).values_list("name", flat=True)}
    own = {prefix + name for prefix in OF_NODES for name in nodes}
    return replace(
        state,
        processes=tuple(row for row in state.processes if not row.name.startswith(OF_NODES) or row.name in own),
        loops=tuple(
            loop if loop.service in whole else replace(loop, error="", decision_id=None) for loop in state.loops
        ),
        unsplit={service: why for service, why in state.unsplit.items() if service in whole},
        short={service: short for service, short in state.short.items() if service in whole},
        nodes=tuple(node for node in state.nodes if node.name in nodes),
        feeds=tuple(row for row in state.feeds if row.feed.site in sites),
    )
