"""Tracks which node has which instance.

An instance does not span nodes; GPUs that drain or change hands are not free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from core.observations.fleet.change_kinds import FreeGpus
from core.simulator.kernel.commands import OFF, FleetView
from core.simulator.kernel.simulated import InstanceSpec, SimulationError
from core.simulator.policies.world import SiteInfo


class InstanceShape(NamedTuple):
    """The properties that instances share which may take each other's place."""

    site: str
    model: str
    gpu: str
    tp: int


def shape_of(spec: InstanceSpec) -> InstanceShape:
    """Returns the shape of an instance."""
    return InstanceShape(spec.site, spec.model, spec.gpu, spec.tp)


@dataclass(slots=True)
class NodeSlots:
    site: str
    gpu: str
    size: int
    free: int


class NodeOccupancy:
    """The nodes, kept in step with the views. Instances are known by their place in `view.instances`.

    Room is taken when a start is commanded, and changes hands when a re-shard is; the instance gets it when a view
    first shows it.
    """

    def __init__(self, sites: Iterable[SiteInfo]) -> None:
        self.nodes: list[NodeSlots] = []
        self.node_of: dict[int, int] = {}  # slot -> node
        self._occupied: dict[int, int] = {}  # slot -> GPUs
        for site in sites:
            self.nodes += [NodeSlots(site.name, node.gpu, node.gpus, node.gpus) for node in site.nodes]

    def sync(self, view: FleetView, reborn: Collection[int], claim: Callable[[int], int | None]) -> None:
        """Releases what went off and places what appeared.

        Args:
            reborn: Slots that went off since the last view and are another instance by now.
            claim: The node whose room was taken for an instance that appeared; None: for nobody, it finds its own.

        Raises:
            SimulationError: An instance that nobody announced fits on no node.
        """
        off = view.state == OFF
        gone = [(slot, node) for slot, node in self.node_of.items() if off[slot] or slot in reborn]
        for slot, node in gone:
            self.nodes[node].free += self._occupied.pop(slot)
            del self.node_of[slot]
        for slot in np.flatnonzero(~off).tolist():
            if slot not in self.node_of:
                claimed = claim(slot)
                self.node_of[slot] = self._take_any(view.instances[slot]) if claimed is None else claimed
                self._occupied[slot] = view.instances[slot].tp

    def _take_any(self, spec: InstanceSpec) -> int:
        node = self.find(shape_of(spec))
        if node is None:
            raise SimulationError(
                f"{spec.name} needs {spec.tp} {spec.gpu} on one node of {spec.site}, and none is free: give the site "
                "more GPUs (or larger nodes)"
            )
        self.take(node, spec.tp)
        return node

    def nodes_of(self, shape: InstanceShape) -> list[int]:
        """Returns the nodes that could hold the shape if they were empty."""
        return [
            n
            for n, node in enumerate(self.nodes)
            if (node.site, node.gpu) == (shape.site, shape.gpu) and node.size >= shape.tp
        ]

    def find(self, shape: InstanceShape, avoid: Sequence[int] = ()) -> int | None:
        """Finds the node to start on: the fullest that still has room (best fit)."""
        fits = [n for n in self.nodes_of(shape) if self.nodes[n].free >= shape.tp and n not in avoid]
        return min(fits, key=lambda n: (self.nodes[n].free, n), default=None)

    def room_elsewhere(self, node: int, shapes: Sequence[InstanceShape]) -> bool:
        """Says whether all of `shapes` find room on other nodes at once (largest first, best fit)."""
        free = {n: found.free for n, found in enumerate(self.nodes) if n != node}
        for shape in sorted(shapes, key=lambda shape: -shape.tp):
            fits = [n for n in self.nodes_of(shape) if n != node and free[n] >= shape.tp]
            if not fits:
                return False
            free[min(fits, key=lambda n: (free[n], n))] -= shape.tp
        return True

    def free(self, view: FleetView, waiting: Iterable[InstanceShape]) -> FreeGpus:
        """Counts the GPUs that no instance has, without those that the waiting shapes will take (best fit)."""
        left = [node.free for node in self.nodes]
        for slot, number in self.node_of.items():
            left[number] += self._occupied[slot] if view.state[slot] == OFF else 0
        for shape in waiting:
            self.reserve(left, shape)
        found: dict[str, dict[int, dict[str, int]]] = defaultdict(dict)
        for number, node in enumerate(self.nodes):
            found[node.site][number] = {node.gpu: left[number]}
        return found

    def reserve(self, left: list[int], shape: InstanceShape) -> int | None:
        """Takes room for a shape out of `left`, GPUs by node, where it fits best; returns the node, None: it fits on
        none."""
        fits = [number for number in self.nodes_of(shape) if left[number] >= shape.tp]
        found = min(fits, key=lambda number: (left[number], number), default=None)
        if found is not None:
            left[found] -= shape.tp
        return found

    def take(self, node: int, gpus: int) -> None:
        """Takes room for an instance that is about to start."""
        self.nodes[node].free -= gpus

    def turn_over(self, slots: Sequence[int], gpus: int) -> int:
        """`gpus` of those that `slots` hold, all on one node, go to instances to come; returns the node.

        What is left over is free when the old ones are off.
        """
        spare = sum(self._occupied[slot] for slot in slots) - gpus
        for slot in slots:
            self._occupied[slot] = 0
        self._occupied[slots[0]] = spare
        return self.node_of[slots[0]]
