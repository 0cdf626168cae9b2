"""Keeps a service served while its placement changes: its last ready instance stays until another one is ready. Pure.

A placement (`node_placement.place`) gives up a bridge whose GPUs are all that a new instance could stand on. If nothing
else of the service is ready, requests would have nowhere to go until the new one has started. So the last ready
instance stays while another one of the service comes up. Where none does, a stand-in is started on free GPUs of any of
the service's pools; it goes once what is wanted is ready, as a bridge does. Only where no GPUs are free for one, or
what is wanted could not start beside it, the last ready instance goes first, and requests wait at the gateways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .node_placement import FAILED, READY, NodeRoom, Placement, Standing, Start, Wanted, place

_NEW = -1  # an instance that has no id yet


def serve_on(
    plan: Placement, wanted: Sequence[Wanted], standing: Sequence[Standing], nodes: Sequence[NodeRoom]
) -> Placement:
    """Returns a placement of the same arguments that leaves an instance ready, where one is and GPUs allow it."""
    usable, drains = {node.id for node in nodes}, set(plan.drains)
    running = [s for s in standing if s.running and s.node_id in usable]
    leaving = [s for s in running if s.state == READY and s.id in drains]
    stays = any(s.state == READY and s.id not in drains for s in running)
    if stays or not leaving or not any(any(w.workers.values()) for w in wanted):
        return plan
    last = max(leaving, key=lambda s: (s.mode.tp, s.id))
    coming = [s for s in running if s.state not in (READY, FAILED)]
    kept, starts = {last.id}, plan.starts
    if not starts and all(s.id in drains for s in coming):
        if coming:  # the stand-in of a turn before, or as good as one
            kept.add(max(coming, key=lambda s: (s.mode.tp, s.id)).id)
        else:
            stand_in = _stand_in(plan, last, wanted, standing, nodes)
            if stand_in is None:
                return plan
            starts = (stand_in,)
    return replace(
        plan,
        starts=starts,
        drains=tuple(pk for pk in plan.drains if pk not in kept),
        bridges=tuple(sorted({*plan.bridges, *kept})),
    )


def _stand_in(
    plan: Placement, last: Standing, wanted: Sequence[Wanted], standing: Sequence[Standing], nodes: Sequence[NodeRoom]
) -> Start | None:
    """Returns the start of one of the last one's mode, or else of a wanted mode, its class and site first."""
    pools = sorted(wanted, key=lambda w: (w.request_class != last.request_class, w.site_id != last.site_id, w.pool_id))
    going = [replace(s, running=False) if s.id in plan.drains else s for s in standing]
    for mode in (last.mode, *sorted({mode for _, mode in (*plan.waiting, *plan.unplaceable)})):
        for w in pools:
            here = [n for n in nodes if n.site_id == w.site_id and len(n.free.get(mode.gpu, ())) >= mode.tp]
            for node in sorted(here, key=lambda n: (len(n.free[mode.gpu]), n.id)):
                gpu_ids = node.free[mode.gpu][: mode.tp]
                ready = Standing(_NEW, w.pool_id, w.site_id, node.id, w.request_class, mode, True, READY, gpu_ids)
                left = replace(node, free={**node.free, mode.gpu: node.free[mode.gpu][mode.tp :]})
                then = place(wanted, [*going, ready], [left if n.id == node.id else n for n in nodes])
                if _NEW not in then.drains and len(then.unplaceable) <= len(plan.unplaceable):
                    return Start(w.pool_id, node.id, mode, gpu_ids)
    return None  # or none that what is wanted could start beside
