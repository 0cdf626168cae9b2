"""Turns the workers that loops want into starts, re-shards and drains, a step at a time as GPUs come free.

1. What is wanted and stands, stays. A surplus instance of the wanted kind in another pool changes its pool. What is
   still missing starts on free GPUs of one node, largest first, on the fullest node that has room; a large one that
   waits for a drain keeps its room from smaller ones.
2. With shadows, the old instances of a pool serve until the new ones are up (`Start.replaces`), and until others are
   where these were called off; those that are wanted again before that stay. Else they drain at once, but for one (a
   bridge) where none that stays serves yet, and what is missing finds room without its GPUs.
3. In place: where GPUs are not free, what the pool has too much of on a node is re-sharded.
4. With shadows, the surplus of a pool that lacks instances serves on, unless nothing else moves: then it makes room, a
   node at a time where nobody else serves.
5. Where room suffices but is scattered, small instances move together.

Rule 3 is for the kind of change `in_place`, which has shadows too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from core.engine.overheads import transition
from core.observations.fleet.change_kinds import FreeGpus
from core.simulator.kernel.commands import (
    DRAINING,
    OFF,
    SERVING,
    STARTING,
    Drain,
    FleetView,
    Keep,
    Move,
    Reshard,
    SetWeight,
    SimCommand,
    Start,
)
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.policies.change_round import Coming, Round, Want, WarmServers
from core.simulator.policies.config import Starting
from core.simulator.policies.node_occupancy import InstanceShape, NodeOccupancy, shape_of
from core.simulator.policies.world import World
from core.types import ChangeKind

SETTLE_S = 5.0  # how often unfinished business is looked at


class Fleet:
    """The instances under a policy. Every loop of the policy shares one; it is given what is wanted and sees views."""

    def __init__(self, world: World, pools: Sequence[str], starting: Starting, change: ChangeKind) -> None:
        self._world, self._pools, self._change = world, tuple(pools), change
        self._occupancy = NodeOccupancy(world.sites)
        self._starting = starting
        self._warm = WarmServers(world.overheads, starting)
        self._templates: dict[InstanceShape, InstanceSpec] = {}
        for spec in world.templates:
            self._templates.setdefault(shape_of(spec), spec)
        self.wanted: dict[Want, int] = {}
        self.weights: dict[Want, float] = {}
        self.unplaced: tuple[Want, ...] = ()  # what fits on no node as things are
        self._leaving: dict[int, int | None] = {}  # slot -> its successor; None: not seen yet, or a re-shard
        self._coming: list[Coming] = []
        self._pool_of: dict[int, int] = {}  # of those that start
        self._drained: set[int] = set()
        self._resharded_s: dict[int, float] = {}  # slots of re-shards, and when these are over
        self._open = False  # something is still to be done
        self._again_s = 0.0

    def want(self, wanted: Mapping[Want, int]) -> None:
        """The workers that every pool is to have from now on."""
        found = {key: count for key, count in wanted.items() if count > 0}
        if found != self.wanted:
            self.wanted, self._open, self._again_s = found, True, 0.0

    def settle(self, view: FleetView) -> list[SimCommand]:
        """Returns the commands that can be given now towards what is wanted. Cheap when nothing is open."""
        if not self._open or view.now_s < self._again_s:
            return []
        self._again_s = view.now_s + SETTLE_S
        commands: list[SimCommand] = list(self._note(view))
        now = self._look(view)
        commands += self._keep(now)
        self._move_surplus(now)
        self._start_missing(now)
        if self._change is ChangeKind.IN_PLACE:
            self._reshard(now)
        if self._change is ChangeKind.RESTART:
            self._drain_surplus(now)
        else:
            self._let_go(now)
        self._gather(now)
        self._open = bool(now.missing or now.acts or any(now.surplus.values()) or self._leaving or self._coming)
        self._drained.update(now.drained)
        # Drains last: an instance that is off at once would lend its place to a start of the same round.
        starts = (start for _, start in now.starts)
        return [*commands, *now.moves, *starts, *now.reshards, *(Drain(now.name(slot)) for slot in now.drained)]

    def first(self, view: FleetView) -> list[Start]:
        """What is wanted before the first second, where it finds room: it serves from then on."""
        starts = [command for command in self.settle(view) if isinstance(command, Start)]
        self._warm = WarmServers(self._world.overheads, self._starting)  # those took none
        self._again_s = 0.0
        return starts

    def reweigh(self, view: FleetView) -> list[SimCommand]:
        """Sets new shares under routing by weights; pools whose instances are all alike need none."""
        kinds: dict[int, set[InstanceShape]] = defaultdict(set)
        slots = [s for s in range(len(view.instances)) if view.state[s] == SERVING and view.pool[s] >= 0]
        for slot in slots:
            kinds[int(view.pool[slot])].add(shape_of(view.instances[slot]))
        return [
            SetWeight(view.instances[slot].name, self._weight((pool, shape_of(view.instances[slot]))))
            for slot in slots
            if len(kinds[pool := int(view.pool[slot])]) > 1
        ]

    def free(self, view: FleetView) -> FreeGpus:
        """Counts the GPUs that no instance has and none that is wanted waits for."""
        return self._occupancy.free(view, [kind for _, kind in self._look(view).missing])

    # -- bookkeeping -----------------------------------------------------------------------------------

    def _weight(self, key: Want) -> float:
        return self.weights.get(key, 1.0)

    def _note(self, view: FleetView) -> list[SetWeight]:
        """Takes in what happened since the last look: who is off, who appeared, whose successor failed to come."""
        weights: list[SetWeight] = []
        reborn = self._reborn(view)
        for slot in [slot for slot in self._occupancy.node_of if view.state[slot] == OFF or slot in reborn]:
            self._drained.discard(slot)
            self._leaving.pop(slot, None)
            self._resharded_s.pop(slot, None)

        def claim(slot: int) -> int | None:
            found = self._claimed(view, slot)
            if found is None:
                return None
            self._coming.remove(found)
            self._pool_of[slot] = found.pool
            self._leaving.update(dict.fromkeys(found.replaces, slot))
            if found.resharded:  # a new instance of a re-shard comes with a share of 1
                weights.append(SetWeight(view.instances[slot].name, self._weight((found.pool, found.kind))))
            return found.node

        self._occupancy.sync(view, reborn, claim)
        for slot, successor in list(self._leaving.items()):
            if successor is not None and view.state[slot] == DRAINING:
                del self._leaving[slot]
                self._drained.add(slot)
            elif successor is not None and successor not in self._occupancy.node_of:
                del self._leaving[slot]  # its successor was called off
        return weights

    def _reborn(self, view: FleetView) -> set[int]:
        """Slots that were to go and are on again: between two looks they went off and a re-shard put another there."""
        on = (view.state == SERVING) | (view.state == STARTING)
        found = {slot for slot in self._drained if on[slot]}
        found |= {slot for slot, end_s in self._resharded_s.items() if on[slot] and view.now_s >= end_s}
        successors = {slot: successor for slot, successor in self._leaving.items() if successor is not None}
        return found | {slot for slot, successor in successors.items() if on[slot] and view.state[successor] == SERVING}

    def _claimed(self, view: FleetView, slot: int) -> Coming | None:
        """Finds what was asked for and appears as `slot`: a start at once, what a re-shard makes when it serves.

        One that starts is in no pool yet; several of a kind appear in the order in which they were asked for.
        """
        kind, pool, starting = shape_of(view.instances[slot]), int(view.pool[slot]), view.state[slot] == STARTING
        mine = [coming for coming in self._coming if coming.kind == kind and (pool < 0 or coming.pool == pool)]
        return min(mine, key=lambda coming: coming.resharded == starting, default=None)

    def _look(self, view: FleetView) -> Round:
        standing: dict[Want, list[int]] = defaultdict(list)
        for state in (SERVING, STARTING):
            for slot in (view.state == state).nonzero()[0].tolist():
                pool = self._pool_of.get(slot, -1) if state == STARTING else int(view.pool[slot])
                if slot not in self._leaving:
                    standing[pool, shape_of(view.instances[slot])].append(slot)
        coming = Counter((item.pool, item.kind) for item in self._coming)
        missing: list[Want] = []
        surplus: dict[int, list[int]] = defaultdict(list)
        for key in sorted({*standing, *self.wanted}):
            lack = self.wanted.get(key, 0) - len(standing.get(key, ())) - coming[key]
            missing += [key] * lack
            if lack < 0:
                mine = standing[key]
                surplus[key[0]] += mine[lack:] if -lack < len(mine) else mine
                standing[key] = mine[:lack] if -lack < len(mine) else []
        missing.sort(key=lambda key: (-key[1].tp, key))
        return Round(view, standing, missing, surplus)

    # -- what a round does -----------------------------------------------------------------------------

    def _keep(self, now: Round) -> list[Keep]:
        """Applies rule 2: what is wanted again before its successor is up stays."""
        view, kept = now.view, []
        for key in list(now.missing):
            mine = (
                slot
                for slot in self._leaving
                if slot not in self._resharded_s
                and view.state[slot] == SERVING
                and (int(view.pool[slot]), shape_of(view.instances[slot])) == key
            )
            slot = next(mine, None)
            if slot is not None:
                del self._leaving[slot]
                for coming in self._coming:
                    coming.replaces = tuple(own for own in coming.replaces if own != slot)
                now.missing.remove(key)
                now.standing[key].append(slot)
                kept.append(Keep(now.name(slot)))
        return kept

    def _move_surplus(self, now: Round) -> None:
        """Applies rule 1: what one pool has too much of, and another lacks, changes its pool."""
        left: list[Want] = []
        for pool, kind in now.missing:
            fits = (
                (other, slot)
                for other, slots in sorted(now.surplus.items())
                for slot in slots
                if slot not in self._leaving
                and shape_of(now.view.instances[slot]) == kind
                and now.view.state[slot] == SERVING
            )
            other, slot = next(fits, (pool, None))
            if slot is None:
                left.append((pool, kind))
                continue
            now.surplus[other].remove(slot)
            now.standing[pool, kind].append(slot)
            now.moves.append(Move(now.name(slot), self._pools[pool], self._weight((pool, kind))))
        now.missing = left

    def _start_missing(self, now: Round) -> None:
        """Applies rule 1: starts what is still missing."""
        left: list[Want] = []
        kept: list[int] = []  # nodes whose room a larger one waits for
        room = self._room_to_come(now)
        for key in now.missing:
            kind = key[1]
            node = self._occupancy.find(kind, kept)
            if node is not None:
                self._start(now, key, node)
                room[node] -= kind.tp
                continue
            left.append(key)
            hope = self._occupancy.reserve(room, kind)
            if hope is not None:
                kept.append(hope)
        now.missing = left

    def _room_to_come(self, now: Round) -> list[int]:
        """Returns the GPUs of each node that are free, or will be when what leaves is gone."""
        room = [node.size for node in self._occupancy.nodes]
        for slots in now.standing.values():
            for slot in slots:
                room[self._occupancy.node_of[slot]] -= now.view.instances[slot].tp
        for coming in self._coming:
            room[coming.node] -= coming.kind.tp
        return room

    def _start(self, now: Round, key: Want, node: int, replaces: tuple[int, ...] = ()) -> None:
        pool, kind = key
        ready_in_s = self._warm.ready_in_s(kind, now.view.now_s)
        self._occupancy.take(node, kind.tp)
        coming = Coming(pool, kind, node, replaces)
        self._coming.append(coming)
        self._leaving.update(dict.fromkeys(replaces))
        names = tuple(now.name(slot) for slot in replaces)
        start = Start(self._spec(pool, kind), self._pools[pool], ready_in_s, names, self._weight(key))
        now.starts.append((coming, start))

    def _spec(self, pool: int, kind: InstanceShape) -> InstanceSpec:
        return replace(self._templates[kind], name=f"{self._pools[pool]}-{kind.site}-{kind.gpu}-tp{kind.tp}")

    def _replace(self, now: Round, pool: int, slots: Sequence[int]) -> bool:
        """Rule 2: `slots` go when the last of the pool's starts of this round is up; False: there is none."""
        mine = [n for n, (coming, _) in enumerate(now.starts) if coming.pool == pool]
        if not mine:
            return False
        last = max(mine, key=lambda n: now.starts[n][1].ready_in_s)
        coming, start = now.starts[last]
        coming.replaces += tuple(slots)
        self._leaving.update(dict.fromkeys(slots))
        names = (*start.replaces, *(now.name(slot) for slot in slots))
        now.starts[last] = (coming, replace(start, replaces=names))
        return True

    def _reshard(self, now: Round) -> None:
        """Rule 3: surplus of a pool on one node becomes what the pool lacks there."""
        for pool in sorted({pool for pool, _ in now.missing} & set(now.surplus)):
            by_node: dict[tuple[int, str], list[int]] = defaultdict(list)
            for slot in now.surplus[pool]:
                if now.view.state[slot] == SERVING:
                    by_node[self._occupancy.node_of[slot], now.view.instances[slot].model].append(slot)
            for (node, model), slots in sorted(by_node.items()):
                self._reshard_node(now, pool, node, model, slots)

    def _reshard_node(self, now: Round, pool: int, node: int, model: str, slots: list[int]) -> None:
        here = self._occupancy.nodes[node]
        slots = sorted(slots, key=lambda slot: (-now.view.instances[slot].tp, slot))
        room = sum(now.view.instances[slot].tp for slot in slots)
        into: list[InstanceShape] = []
        for owner, kind in now.missing:
            if owner == pool and (kind.site, kind.gpu, kind.model) == (here.site, here.gpu, model) and kind.tp <= room:
                into.append(kind)
                room -= kind.tp
        if not into:
            return
        need = sum(kind.tp for kind in into)
        used: list[int] = []
        for slot in slots:
            if sum(now.view.instances[u].tp for u in used) < need:
                used.append(slot)
        old = [now.view.instances[slot].tp for slot in used]
        cost = transition(model, here.gpu, old, [kind.tp for kind in into], self._world.overheads)
        specs = tuple(self._spec(pool, kind) for kind in into)
        now.reshards.append(
            Reshard(tuple(now.name(s) for s in used), specs, cost.transfer_s, cost.sync_s, cost.kv_share)
        )
        self._occupancy.turn_over(used, need)
        self._resharded_s.update(dict.fromkeys(used, now.view.now_s + cost.transfer_s + cost.sync_s))
        self._leaving.update(dict.fromkeys(used))
        for kind in into:
            self._coming.append(Coming(pool, kind, node, resharded=True))
            now.missing.remove((pool, kind))
        now.surplus[pool] = [slot for slot in now.surplus[pool] if slot not in used]

    def _drain_surplus(self, now: Round) -> None:
        """Applies rule 2 without shadows."""
        given_up: set[int] = set()
        bridges = self._bridges(now, given_up)
        while in_the_way := self._in_the_way(now, bridges.values()):
            given_up.add(min(in_the_way, key=lambda slot: (now.view.instances[slot].tp, slot)))
            bridges = self._bridges(now, given_up)
        for pool, slots in now.surplus.items():
            stays = bridges.get(pool)
            for slot in slots:
                if slot != stays:
                    now.drain(slot)
            now.surplus[pool] = [] if stays is None else [stays]

    def _bridges(self, now: Round, given_up: Collection[int]) -> dict[int, int]:
        """Returns, for each wanted pool of which nothing that stays serves, the smallest of its surplus that does."""
        state, specs = now.view.state, now.view.instances
        without = {pool for pool, _ in self.wanted}
        without -= {pool for (pool, _), slots in now.standing.items() if any(state[slot] == SERVING for slot in slots)}
        found = {}
        for pool in sorted(without & set(now.surplus)):
            ready = [slot for slot in now.surplus[pool] if state[slot] == SERVING and slot not in given_up]
            if ready:
                found[pool] = min(ready, key=lambda slot: (specs[slot].tp, slot))
        return found

    def _in_the_way(self, now: Round, bridges: Collection[int]) -> list[int]:
        """Returns the bridges of a site and GPU type where something that is missing fits nowhere beside them."""
        left = self._room_to_come(now)
        for slot in bridges:
            left[self._occupancy.node_of[slot]] -= now.view.instances[slot].tp
        stuck = {(kind.site, kind.gpu) for _, kind in now.missing if self._occupancy.reserve(left, kind) is None}
        specs = now.view.instances
        return [slot for slot in bridges if (specs[slot].site, specs[slot].gpu) in stuck]

    def _let_go(self, now: Round) -> None:
        """Applies rule 4, and ends all surplus that nobody waits for."""
        lacking: Counter[int] = Counter()
        for pool, kind in now.missing:
            lacking[pool] += kind.tp
        awaited = {coming.pool for coming in self._coming}
        awaited |= {
            pool for (pool, _), slots in now.standing.items() if any(now.view.state[s] == STARTING for s in slots)
        }
        for pool, slots in now.surplus.items():
            stay: list[int] = []
            going: list[int] = []
            for slot in sorted(slots, key=lambda s: (-now.view.instances[s].tp, s)):
                if now.view.state[slot] != SERVING:
                    now.drain(slot)
                elif lacking[pool] > 0:
                    lacking[pool] -= now.view.instances[slot].tp
                    stay.append(slot)
                else:
                    going.append(slot)
            if going and not self._replace(now, pool, going):
                if pool in awaited:  # those that they were to go for were called off, and others start
                    stay += going
                else:
                    for slot in going:
                        now.drain(slot)
            now.surplus[pool] = stay
        if now.missing and not self._moves(now):
            for pool, slots in now.surplus.items():
                going = self._making_room(now, pool, slots)
                for slot in going:
                    now.drain(slot)
                now.surplus[pool] = [slot for slot in slots if slot not in going]

    def _making_room(self, now: Round, pool: int, slots: Sequence[int]) -> list[int]:
        """Chooses what goes of a pool's surplus so that what is missing has room.

        That is all of it where others of the pool serve. Else it is the fewest GPUs of one node with which an instance
        of the pool finds room there: the rest serves on until it is up.
        """
        view, node_of = now.view, self._occupancy.node_of
        lacking = [kind for owner, kind in now.missing if owner == pool]
        if not lacking or any(
            view.state[s] == SERVING for key, own in now.standing.items() if key[0] == pool for s in own
        ):
            return list(slots)
        found: list[list[int]] = []
        for kind in lacking:
            for node in self._occupancy.nodes_of(kind):
                need, going = kind.tp - self._occupancy.nodes[node].free, []
                for slot in sorted(slots, key=lambda slot: (-view.instances[slot].tp, slot)):
                    if need > 0 and node_of[slot] == node:
                        going.append(slot)
                        need -= view.instances[slot].tp
                if need <= 0:
                    found.append(going)
        return min(found, key=lambda going: sum(view.instances[slot].tp for slot in going), default=[])

    def _moves(self, now: Round) -> bool:
        under_way = bool(((now.view.state == STARTING) | (now.view.state == DRAINING)).any())
        return now.acts or under_way or bool(self._leaving or self._coming)

    def _gather(self, now: Round) -> None:
        """Applies rule 5 for the largest instance that fits nowhere although nothing moves any more."""
        self.unplaced = () if self._moves(now) else tuple(now.missing)
        if not self.unplaced:
            return
        kind = self.unplaced[0][1]
        for node in self._occupancy.nodes_of(kind):
            need = kind.tp - self._occupancy.nodes[node].free
            movers: list[tuple[Want, int]] = []
            for key, slots in sorted(now.standing.items(), key=lambda item: item[0][1].tp):
                movers += [(key, s) for s in slots if self._occupancy.node_of[s] == node and key[1].tp < kind.tp]
            chosen: list[tuple[Want, int]] = []
            while need > 0 and movers:
                chosen.append(movers.pop(0))
                need -= chosen[-1][0][1].tp
            if need <= 0 and self._occupancy.room_elsewhere(node, [key[1] for key, _ in chosen]):
                for key, slot in chosen:
                    elsewhere = self._occupancy.find(key[1], (node,))
                    if elsewhere is not None and self._change is ChangeKind.RESTART:
                        self._start(now, key, elsewhere)
                        now.drain(slot)
                    elif elsewhere is not None:
                        self._start(now, key, elsewhere, (slot,))
                return
