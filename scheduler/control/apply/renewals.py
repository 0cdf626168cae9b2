"""Replaces instances that were started for less than their service's engines are started for now, one by one. Pure.

An engine takes LoRA adapters of the rank, and as many at once, as it was started for: after the first adapter of a
service, or one of a higher rank, engines have to be started anew. Where a placement (`node_placement.place`) has
nothing else to do and all that serve are ready, the oldest of them gets a successor on free GPUs, and drains once that
is ready, as after a shadow start. Should it fail, the old one serves on. Where no GPUs are free it drains first, if
another one of its class serves meanwhile; the last one of a class stays as it is until GPUs are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .node_placement import READY, NodeRoom, Placement, Standing, Wanted, place


def renew(plan: Placement, standing: Sequence[Standing], nodes: Sequence[NodeRoom]) -> Placement:
    """Returns the plan with one instance's renewal in it, where it leaves room for one."""
    usable = {node.id for node in nodes}
    serving = [s for s in standing if s.node_id in usable and not s.warm]
    if plan.changes or plan.waiting or not all(s.running and s.state == READY for s in serving):
        return plan
    outdated = sorted((s for s in serving if s.outdated), key=lambda s: (s.order, s.id))
    for old in outdated:
        alike = Wanted(old.pool_id, old.site_id, old.request_class, {old.mode: 1})
        for start in place([alike], (), nodes).starts:
            return replace(plan, starts=(replace(start, replaces=(old.id,)),))
    if plan.unplaceable:  # which would take the GPUs
        return plan
    for old in outdated:
        if any(s.request_class == old.request_class and s.id != old.id for s in serving):
            return replace(plan, drains=(old.id,))
    return plan
