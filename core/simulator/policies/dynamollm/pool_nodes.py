"""DynamoLLM's nodes: which pool each serves, what runs on it, and how that becomes commands.

A node, one server of the cluster, stands at a site and belongs to one pool. A router places every request, so that a
node changes pools at once, with all that runs on it; all instances are in one pool of the simulator's. What starts,
re-shards and ends is followed from view to view. Instances that stand beside the servers stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from core.algorithms.placement.node_layouts import Layout
from core.simulator.kernel.commands import (
    DRAINING,
    OFF,
    SERVING,
    STARTING,
    Drain,
    FleetView,
    Reshard,
    SimCommand,
    Start,
)
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.policies.change_round import WarmServers
from core.simulator.policies.node_occupancy import shape_of
from core.types import Mode, ReshardNode

Place = tuple[str, int]  # a site and a pool, by its number

_EPS = 1e-9


@dataclass(slots=True)
class _Coming:
    """An instance that was asked for and that no view has shown yet; of a re-shard it serves from `at_s`."""

    tp: int
    at_s: float
    starting: bool


@dataclass(slots=True)
class PoolNode:
    """`pool` None: nobody's. `slots`: places in the view of what runs on it; `old`: those that a re-shard ends.

    Shard may leave a node without instances: it is its pool's all the same, until scale takes it.
    """

    name: str
    site: str
    pool: int | None = None
    slots: list[int] = field(default_factory=list)
    old: list[int] = field(default_factory=list)
    coming: list[_Coming] = field(default_factory=list)
    shifted: bool = False  # its load is to go elsewhere, since nobody will serve here for a while
    given_up: bool = False  # scale has taken it: it is nobody's once what it runs has ended

    @property
    def changing(self) -> bool:
        return bool(self.old or self.coming)


class Nodes:
    """All nodes of the cluster. `best`: what one runs that starts. `templates`: by site and mode."""

    def __init__(
        self, best: Mode | None, pool: str, templates: Mapping[tuple[str, Mode], InstanceSpec], warm: WarmServers
    ) -> None:
        self.all: list[PoolNode] = []
        self.wanted: dict[Place, int] = {}
        self._best, self._pool, self._templates, self._warm = best, pool, templates, warm
        self._node_of: dict[int, PoolNode] = {}
        self._beside: dict[int, int] = {}  # slot -> pool
        self._leaving: set[int] = set()  # drained
        self._seen = b""
        self.version = 0  # counts the changes of who serves for which pool

    # -- from views ------------------------------------------------------------------------------------

    def sync(self, view: FleetView) -> None:
        """Takes in what happened; cheap when nothing did."""
        seen = view.state.tobytes() + view.pool.tobytes()
        if seen == self._seen:
            return
        self._seen = seen
        self.version += 1
        state, pool = view.state.tolist(), view.pool.tolist()
        self._note_ends(view.now_s, state)
        for slot in range(len(state)):
            known = slot in self._node_of or slot in self._beside
            if not known and (state[slot] == STARTING or (state[slot] == SERVING and pool[slot] >= 0)):
                self._claim(slot, view.instances[slot], state[slot] == STARTING)

    def _note_ends(self, now_s: float, state: Sequence[int]) -> None:
        for node in self.all:
            shards = [one for one in node.coming if not one.starting]
            if node.old and (not shards or shards[0].at_s <= now_s + _EPS):
                for slot in node.old:
                    self._forget(slot)
                node.old = []
            for slot in list(node.slots):
                on_again = slot in self._leaving and state[slot] in (STARTING, SERVING)
                if (state[slot] == OFF or on_again) and slot not in node.old:
                    self._forget(slot)
            if not node.changing:
                node.shifted = False
            if node.given_up and not node.slots and not node.coming:
                node.pool, node.given_up = None, False

    def _forget(self, slot: int) -> None:
        node = self._node_of.pop(slot)
        node.slots.remove(slot)
        self._leaving.discard(slot)

    def _claim(self, slot: int, spec: InstanceSpec, starting: bool) -> None:
        """Gives what appeared to the node that has waited for it longest. At a site those of a degree are all alike."""
        waiting = [
            (one.at_s, n, node, one)
            for n, node in enumerate(self.all)
            for one in node.coming
            if (node.site, one.tp, one.starting) == (spec.site, spec.tp, starting)
        ]
        if not waiting:
            return
        _, _, node, one = min(waiting, key=lambda item: item[:2])
        node.coming.remove(one)
        node.slots.append(slot)
        self._node_of[slot] = node

    # -- what runs -------------------------------------------------------------------------------------

    def counts(self, pools: int) -> list[int]:
        """Counts the nodes of each pool, those that shard has emptied included."""
        found = [0] * pools
        for node in self.all:
            if node.pool is not None and not node.given_up:
                found[node.pool] += 1
        return found

    def serving(self, pool: int, view: FleetView) -> list[int]:
        """Returns the slots that take requests of a pool, at all sites; those on nodes whose load is to be shifted only
        when nobody else does."""
        mine = [node for node in self.all if node.pool == pool]
        found = [slot for node in mine if not node.shifted for slot in self._up(node.slots, view)]
        found += self._up([slot for slot, own in self._beside.items() if own == pool], view)
        return found or [slot for node in mine for slot in self._up(node.slots, view)]

    def _up(self, slots: Iterable[int], view: FleetView) -> list[int]:
        return [slot for slot in slots if view.state[slot] == SERVING and view.pool[slot] >= 0]

    def layouts(self, place: Place, view: FleetView) -> dict[str, Layout]:
        """Returns what runs on the nodes of a pool at a site, those that still start left out; a node that re-shards
        counts as it will end."""
        found: dict[str, Layout] = {}
        for node in self.all:
            stays = self._stays(node)
            starting = not node.old and (node.coming or any(view.state[slot] == STARTING for slot in stays))
            if (node.site, node.pool) == place and not node.given_up and not starting:
                found[node.name] = tuple(sorted(view.instances[slot].tp for slot in stays))
        return found

    def owned(self, place: Place, view: FleetView) -> list[Layout]:
        """Returns what each node of a pool at a site runs, those that start or have been emptied included."""
        return [
            tuple(sorted(view.instances[slot].tp for slot in self._stays(node)))
            for node in self.all
            if (node.site, node.pool) == place and not node.given_up
        ]

    def beside(self, place: Place, view: FleetView) -> dict[Mode, int]:
        """Counts what stands beside the servers of a pool at a site."""
        found = Counter[Mode]()
        for slot, pool in self._beside.items():
            spec = view.instances[slot]
            found[Mode(spec.gpu, spec.tp)] += (spec.site, pool) == place
        return dict(+found)

    # -- nodes of pools --------------------------------------------------------------------------------

    def settle(self, view: FleetView) -> list[SimCommand]:
        """A step towards the nodes that each pool is to have at each site: from pools that have too many there, else
        from nobody's."""
        have = Counter((node.site, node.pool) for node in self.all if node.pool is not None and not node.given_up)
        surplus: list[PoolNode] = []
        for place, wanted in self.wanted.items():
            for node in self._least_used(place, have[place] - wanted, view):
                if self._stays(node):
                    surplus.append(node)
                elif node.slots:
                    node.given_up = True
                else:
                    node.pool = None
        commands: list[SimCommand] = []
        largest_first = sorted(self.wanted, key=lambda place: place[1], reverse=True)  # it takes from all
        for site, pool in largest_first:
            for _ in range(self.wanted[site, pool] - have[site, pool]):
                if (taken := next((node for node in surplus if node.site == site), None)) is not None:
                    surplus.remove(taken)
                    taken.pool = pool
                    self.version += 1
                elif (free := self._free(site)) is not None:
                    commands.append(self._start(free, pool, view.now_s))
        for node in surplus:
            node.given_up = True
            commands += self._empty(node.slots, view)
        return commands

    def _free(self, site: str) -> PoolNode | None:
        return next((node for node in self.all if node.pool is None and node.site == site), None)

    def _stays(self, node: PoolNode) -> list[int]:
        return [slot for slot in node.slots if slot not in self._leaving]

    def _least_used(self, place: Place, count: int, view: FleetView) -> list[PoolNode]:
        """Returns the nodes that a pool gives up at a site; one that changes must end that first."""
        mine = [
            node for node in self.all if (node.site, node.pool) == place and not node.changing and not node.given_up
        ]
        mine.sort(key=lambda node: (bool(self._stays(node)), sum(int(view.running[slot]) for slot in node.slots)))
        return mine[: max(0, count)]

    def _start(self, node: PoolNode, pool: int, now_s: float) -> Start:
        assert self._best is not None, "there are nodes"
        spec = self._spec(node.site, self._best)
        node.pool = pool
        return self._join(node, spec, self._warm.ready_in_s(shape_of(spec), now_s), now_s)

    def _join(self, node: PoolNode, spec: InstanceSpec, ready_in_s: float, now_s: float) -> Start:
        node.coming.append(_Coming(spec.tp, now_s + ready_in_s, starting=True))
        return Start(spec, self._pool, ready_in_s)

    def _spec(self, site: str, mode: Mode) -> InstanceSpec:
        return replace(self._templates[site, mode], name=f"tp{mode.tp}")

    def _empty(self, slots: Iterable[int], view: FleetView) -> list[SimCommand]:
        going = [slot for slot in slots if view.state[slot] != DRAINING]
        self._leaving.update(going)
        self.version += 1
        return [Drain(view.instances[slot].name) for slot in going]

    # -- layouts of nodes ------------------------------------------------------------------------------

    def reshard(self, change: ReshardNode, view: FleetView) -> list[SimCommand]:
        """Takes a node from one layout to another.

        What is in both stays; nothing, when it is not as the change has it.
        """
        node = next(node for node in self.all if node.name == change.node)
        up = self._up(node.slots, view)
        layout = tuple(sorted(view.instances[slot].tp for slot in up))
        ending = any(slot in self._leaving for slot in node.slots)
        if node.changing or ending or layout != tuple(sorted(change.source)):
            return []
        ends, begins = Counter(change.source), Counter(change.target)
        ends, begins = ends - begins, begins - ends
        old: list[int] = []
        for slot in sorted(up, key=lambda slot: int(view.running[slot])):
            if ends[view.instances[slot].tp] > 0:
                ends[view.instances[slot].tp] -= 1
                old.append(slot)
        new = [self._spec(node.site, Mode(change.gpu, tp)) for tp in sorted(begins.elements())]
        takes_s = change.transfer_s + change.sync_s
        if not old:
            return [self._join(node, spec, takes_s, view.now_s) for spec in new]
        if not new:
            return self._empty(old, view)
        node.old = old
        node.coming += [_Coming(spec.tp, view.now_s + takes_s, starting=False) for spec in new]
        node.shifted = not change.serves_on
        self.version += 1
        names = tuple(view.instances[slot].name for slot in old)
        into = tuple(new)
        if change.serves_on:
            return [Reshard(names, into, takes_s, 0.0, change.kv_share)]
        if change.kv_share <= 0.0:  # what comes does not fit beside what is there: they are down first
            return [Reshard(names, into, 0.0, takes_s, 1.0)]
        return [Reshard(names, into, change.transfer_s, change.sync_s, change.kv_share)]

    def first(
        self,
        at: Mapping[str, int],
        layouts: Mapping[Place, Mapping[str, Layout]],
        beside: Mapping[Place, Mapping[Mode, int]],
    ) -> list[InstanceSpec]:
        """Returns who serves from the first second on, in the order of the slots.

        Args:
            at: The servers at each site; those beyond `layouts` are nobody's.
            layouts: What runs on the servers of each pool, by their names.
            beside: What stands beside them.
        """
        found: list[InstanceSpec] = []

        def join(site: str, mode: Mode) -> int:
            found.append(replace(self._spec(site, mode), name=f"tp{mode.tp}-{len(found)}"))
            return len(found) - 1

        for (site, pool), servers in layouts.items():
            for name, layout in servers.items():
                assert self._best is not None, "there are servers"
                node = PoolNode(name, site, pool, [join(site, Mode(self._best.gpu, tp)) for tp in layout])
                self._node_of |= dict.fromkeys(node.slots, node)
                self.all.append(node)
        for (site, pool), workers in beside.items():
            self._beside |= {join(site, mode): pool for mode in Counter(workers).elements()}
        names = (f"server-{n}" for n in count(len(self.all)))
        taken = Counter(node.site for node in self.all)
        for site, servers_there in at.items():
            self.all += [PoolNode(next(names), site) for _ in range(servers_there - taken[site])]
        self.wanted = {place: len(servers) for place, servers in layouts.items()}
        return found
