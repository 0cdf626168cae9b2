"""mu-Serve's placement of several models (section 3.2) on the live fleet: which nodes each service's model gets.

AlpaServe's greedy choice (`core.algorithms.placement.model_placement.select_models`), a node as a group of devices.
Live, a GPU is one instance's, so a group has one model, and the second step, which puts like partitions of several
models on one device (Algorithm 2), has nothing to choose; it is the simulator's. A service alone has all nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.algorithms.placement.model_placement import GroupPlacement, select_models
from core.controllers.fleet.shared_out import NodeView, units
from core.types import PartitionOption
from pools.models import Partition, Service
from scheduler.control import turn_context
from scheduler.control.snapshot import snapshot
from scheduler.control.snapshot.offered_nodes import offered_nodes
from scheduler.control.turn_context import TurnContext

# Where nothing was ever asked of a model, it is to have somewhere to be: requests/s.
_FLOOR_RPS = 0.05


def nodes_of(context: TurnContext) -> tuple[NodeView, ...]:
    """Returns the nodes of one service of those that are placed together. All of them get the same placement as long as
    they ask about the same moment; where they do not, GPUs go to the first that asks.
    """
    peers = [found for found in Service.objects.order_by("name") if found.policy_knobs().scale == "placement"]
    nodes = offered_nodes(context, peers)
    if len(peers) < 2:
        return nodes
    options, tps = {}, {}
    for peer in peers:
        own = turn_context.resolve(peer, context.now, context.reporting)
        if Partition.objects.filter(name=own.knobs.partition).exists():
            obs, _ = snapshot.shared_out(own, nodes)
            options[peer.name], tps[peer.name] = obs.partition, own.knobs.tp
    mine = place(nodes, options, tps).get(context.service.name, ())
    return tuple(nodes[n] for n in mine)


def place(
    nodes: Sequence[NodeView], options: Mapping[str, PartitionOption], tps: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Gives each model nodes, by number, so that the largest share of all requests finds capacity within its limits."""
    rates = {
        (name, n): _carries(node, option, tps[name]) for name, option in options.items() for n, node in enumerate(nodes)
    }
    demand = {
        name: max(_FLOOR_RPS, sum(max(c.demand_rps, default=0.0) for c in o.classes)) for name, o in options.items()
    }

    def attainment(placement: GroupPlacement) -> float:
        served = 0.0
        for name, rps in demand.items():
            served += min(rps, sum(rates[name, n] for n, models in enumerate(placement.models) if name in models))
        return served / sum(demand.values())

    one_each = dict.fromkeys(options, 1.0)
    found = select_models([[str(n)] for n in range(len(nodes))], 1.0, one_each, attainment).placement
    return {name: tuple(n for n, models in enumerate(found.models) if name in models) for name in options}


def _carries(node: NodeView, option: PartitionOption, tp: int) -> float:
    """Returns the rps that a node carries of the class that its instances serve worst, of those that they can serve."""
    total = 0.0
    for (_, mode), count in units([node], option, tp).items():
        able = [profile.max_rps for (_, of), profile in option.profiles.items() if of == mode and profile.max_rps > 0.0]
        total += count * min(able, default=0.0)
    return total
