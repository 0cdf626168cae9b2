"""Decides which instance stands on which node: from wanted workers to starts, moves between pools and drains. Pure.

The rules, in order:
1. What runs and is still wanted stays where it is.
2. A surplus instance of the right mode at the site changes its pool instead of being restarted.
3. New ones are placed largest first, each on the node with the fewest free GPUs that still fits (best fit), on a server
   that has to boot only where no other fits.
   One that has to wait for a drain reserves its room, so that a smaller one does not take it.
4. The last ready instance of a class (a bridge) is drained only once another one of the class is ready, unless its
   GPUs are all that a new instance of the class could stand on. While others of its class come up, what waits for its
   GPUs waits on.
5. Where free GPUs suffice but lie on several nodes, small instances make room for a large one.
6. In a pool with shadows a new instance on free GPUs replaces a surplus one of its class, of the same pool if there is
   one, which serves until the new one is ready. Where a new one finds no free GPUs it starts beside a surplus one
   of its pool, on that one's GPUs, if both fit into their memory; else it waits for a drain, as elsewhere. One that
   failed beside another gets these GPUs to itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from core.types import Mode

READY, FAILED = "ready", "failed"

SliceId: TypeAlias = Hashable  # of one GPU of a mode: a slice, which of a GPU that is not cut is all of it


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pool and the workers it is to have. `shadow`: new ones warm up beside those that they replace. `in_place`: they
    are made of what there is too much of, where engines can (`in_place.turns`).
    """

    pool_id: int
    site_id: int
    request_class: str
    workers: Mapping[Mode, int]
    shadow: bool = False
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """A live instance. `running`: it is to go on, rather than draining. `order` is its age: older first.

    `replaces`: the instances that it is a shadow of.
    """

    id: int
    pool_id: int
    site_id: int
    node_id: int
    request_class: str
    mode: Mode
    running: bool
    state: str
    gpu_ids: tuple[SliceId, ...]
    order: int = 0
    replaces: tuple[int, ...] = ()
    warm: bool = False  # it is of the warm pool: to sleep, until it is wanted
    outdated: bool = False  # it was started for less than its service's engines are started for now
    roomy: bool = False  # its GPUs have memory for another one of its service
    beside: bool = False  # it was started on GPUs of one that it replaces
    reshards: bool = False  # its engine can go over to other GPUs while it serves


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node that new instances may use, and its free GPUs, by type. `soon`: how many other services are giving up.

    `boots`: it is a server that is off or boots, which the others come before.
    """

    id: int
    site_id: int
    free: Mapping[str, tuple[SliceId, ...]]
    soon: Mapping[str, int] = field(default_factory=dict)
    boots: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    pool_id: int
    node_id: int
    mode: Mode
    gpu_ids: tuple[SliceId, ...]
    replaces: tuple[int, ...] = ()
    beside: bool = False  # on GPUs of the one that it replaces


@dataclass(frozen=True, slots=True)
class Placement:
    """The changes to make now. `waiting` ones start once something else has gone; `unplaceable` ones fit nowhere."""

    moves: Mapping[int, int] = field(default_factory=dict)  # instance -> its new pool
    starts: tuple[Start, ...] = ()
    drains: tuple[int, ...] = ()
    waiting: tuple[tuple[int, Mode], ...] = ()
    unplaceable: tuple[tuple[int, Mode], ...] = ()
    bridges: tuple[int, ...] = ()  # surplus that serves until others do: of rules 4 and 6
    last: tuple[int, ...] = ()  # bridges that are all that serves of a class, or at all, while others come up

    @property
    def changes(self) -> bool:
        return bool(self.moves or self.starts or self.drains)


def place(wanted: Sequence[Wanted], standing: Sequence[Standing], nodes: Sequence[NodeRoom]) -> Placement:
    """Plans with all bridges kept and nothing displaced, then gives up what is in the way, one step at a time."""
    usable = {node.id for node in nodes}
    standing = [s for s in standing if s.node_id in usable]  # a silent node's instances are left alone
    sites = {w.pool_id: w.site_id for w in wanted}
    given_up = {old for s in standing if s.beside and s.state == FAILED for old in s.replaces}
    displaced: set[int] = set()
    best: Placement | None = None

    def soon_free(bridge: Standing, plan: Placement) -> bool:
        """Says whether others of its class come up, and giving the bridge up now keeps none of them from it."""
        if bridge.id not in plan.last:
            return False
        without = _attempt(wanted, standing, nodes, given_up | {bridge.id}, displaced)
        return not Counter(without.unplaceable) - Counter(plan.unplaceable)

    while True:
        plan = _attempt(wanted, standing, nodes, given_up, displaced)
        if best is None or len(plan.unplaceable) < len(best.unplaceable):
            best = plan
        if not plan.unplaceable:
            return plan
        short = {(sites[pool_id], mode.gpu) for pool_id, mode in plan.unplaceable}
        in_the_way = [s for s in standing if s.id in plan.bridges and (s.site_id, s.mode.gpu) in short]
        if in_the_way:
            gone = next((s.id for s in sorted(in_the_way, key=_size) if not soon_free(s, plan)), None)
            if gone is None:
                return best if displaced else plan  # nothing makes room for what fits nowhere all the same
            given_up.add(gone)
            continue
        room = _make_room(plan, standing, nodes, sites, displaced)
        if not room:
            return best
        displaced |= room


def _size(s: Standing) -> tuple[int, int]:
    return s.mode.tp, s.id


def _attempt(
    wanted: Sequence[Wanted],
    standing: Sequence[Standing],
    nodes: Sequence[NodeRoom],
    given_up: set[int],
    displaced: set[int],
) -> Placement:
    running = [s for s in standing if s.running and s.id not in displaced]
    staying, missing = _keep(wanted, running)
    missing = _reuse(wanted, running, missing, staying, same_class=True)
    bridges = _bridges(wanted, running, staying, given_up)
    shadowed = _shadowed(running, staying) - given_up
    kept = bridges | shadowed
    free_to_move = [s for s in running if s.id not in kept]
    missing = _reuse(wanted, free_to_move, missing, staying, same_class=False)
    alone = set() if kept else _last_ready(wanted, running, staying, given_up)
    kept |= alone
    drains = [s for s in standing if s.running and s.id not in staying and s.id not in kept]
    going = [*drains, *(s for s in standing if not s.running)]
    sites = {w.pool_id: w.site_id for w in wanted}
    starts, waiting, unplaceable = _start(missing, sites, nodes, going)
    short = {(sites[pool_id], mode.gpu) for pool_id, mode in (*waiting, *unplaceable)}
    surplus = [s for s in standing if s.running and s.id not in staying and s.id not in shadowed]
    starts = _as_shadows(wanted, starts, surplus, short)
    beside, waiting = _beside(wanted, waiting, [s for s in drains if s.state == READY and s.roomy])
    starts += beside
    waited_for = {old for start in starts for old in start.replaces}
    drains = [s for s in drains if s.id not in waited_for]
    pools = {*(start.pool_id for start in starts), *(pool_id for pool_id, _ in waiting), *staying.values()}
    coming = {w.request_class for w in wanted if w.pool_id in pools}
    last = {s.id for s in running if s.id in bridges and s.request_class in coming}
    last |= alone if starts or staying else set()
    return Placement(
        moves={s.id: staying[s.id] for s in running if s.id in staying and staying[s.id] != s.pool_id},
        starts=tuple(starts),
        drains=tuple(s.id for s in drains),
        waiting=tuple(waiting),
        unplaceable=tuple(unplaceable),
        bridges=tuple(sorted(kept | waited_for)),
        last=tuple(sorted(last)),
    )


def _shadowed(running: Sequence[Standing], staying: Mapping[int, int]) -> set[int]:
    """Returns the surplus instances whose replacement is still wanted and not ready yet (rule 6)."""
    waited_for = {old for s in running if s.id in staying and s.state != READY for old in s.replaces}
    return {s.id for s in running if s.id in waited_for and s.id not in staying}


def _beside(
    wanted: Sequence[Wanted], waiting: Sequence[tuple[int, Mode]], surplus: Sequence[Standing]
) -> tuple[list[Start], list[tuple[int, Mode]]]:
    """Returns those of `waiting` that start on GPUs of a surplus one of their pool, and the others (rule 6)."""
    shadowing = {w.pool_id for w in wanted if w.shadow}
    left = {s.id: s for s in sorted(surplus, key=lambda s: (s.order, s.id))}
    starts, waiting_on = [], []
    for pool_id, mode in waiting:
        fits = (s for s in left.values() if s.pool_id == pool_id and s.mode.gpu == mode.gpu and s.mode.tp >= mode.tp)
        old = next(fits, None) if pool_id in shadowing else None
        if old is None:
            waiting_on.append((pool_id, mode))
            continue
        del left[old.id]
        starts.append(Start(pool_id, old.node_id, mode, old.gpu_ids[: mode.tp], (old.id,), beside=True))
    return starts, waiting_on


def _as_shadows(
    wanted: Sequence[Wanted], starts: Sequence[Start], surplus: Sequence[Standing], short: set[tuple[int, str]]
) -> list[Start]:
    """Makes pairs of what starts and what would go, oldest first; the last start takes over from all others (rule 6).

    `short`: sites and GPU types for which others wait: what would go there does.
    """
    shadowing = {w.pool_id for w in wanted if w.shadow}
    class_of = {w.pool_id: w.request_class for w in wanted}
    going: dict[str, list[Standing]] = defaultdict(list)
    for s in sorted(surplus, key=lambda s: (s.order, s.id)):
        if s.pool_id in shadowing and s.state == READY and (s.site_id, s.mode.gpu) not in short:
            going[s.request_class].append(s)
    left = Counter(class_of[start.pool_id] for start in starts)
    found = []
    for start in starts:
        name = class_of[start.pool_id]
        left[name] -= 1
        mine = sorted(going[name], key=lambda s: s.pool_id != start.pool_id)
        olds = mine[:1] if left[name] else mine
        going[name] = mine[len(olds) :]
        found.append(replace(start, replaces=tuple(s.id for s in olds)))
    return found


def _bridges(
    wanted: Sequence[Wanted], running: Sequence[Standing], staying: Mapping[int, int], given_up: set[int]
) -> set[int]:
    """Returns, for each wanted class of which nothing ready stays, one ready instance of it that would go (rule 4)."""
    classes = {w.pool_id: w.request_class for w in wanted}
    without = {w.request_class for w in wanted if any(w.workers.values())}
    without -= {classes[staying[s.id]] for s in running if s.id in staying and s.state == READY}
    found: dict[str, int] = {}
    for s in sorted(running, key=lambda s: (s.mode.tp, s.id)):
        if s.state == READY and s.request_class in without and s.id not in staying and s.id not in given_up:
            found.setdefault(s.request_class, s.id)
    return set(found.values())


def _last_ready(
    wanted: Sequence[Wanted], running: Sequence[Standing], staying: Mapping[int, int], given_up: set[int]
) -> set[int]:
    """Keeps one instance that serves whatever comes, for a partition none of whose classes has anybody yet (rule 4)."""
    if not any(any(w.workers.values()) for w in wanted) or any(s.id in staying and s.state == READY for s in running):
        return set()
    surplus = [s for s in running if s.state == READY and s.id not in given_up]
    return {max(surplus, key=lambda s: (s.mode.tp, s.id)).id} if surplus else set()


def _keep(wanted: Sequence[Wanted], running: Sequence[Standing]) -> tuple[dict[int, int], list[tuple[int, Mode]]]:
    """Returns instance -> pool of those that stay, ready and old ones first, and the workers still missing (rule 1).

    Outdated ones that another one replaces come last.
    """
    by_pool: dict[tuple[int, Mode], list[Standing]] = defaultdict(list)
    replaced = {old for s in running for old in s.replaces}
    for s in sorted(running, key=lambda s: (s.outdated and s.id in replaced, s.state != READY, s.order, s.id)):
        by_pool[s.pool_id, s.mode].append(s)
    kept: dict[int, int] = {}
    missing: list[tuple[int, Mode]] = []
    for w in wanted:
        for mode, count in w.workers.items():
            stay = by_pool[w.pool_id, mode][:count]
            kept.update({s.id: w.pool_id for s in stay})
            missing += [(w.pool_id, mode)] * (count - len(stay))
    return kept, missing


def _reuse(
    wanted: Sequence[Wanted],
    running: Sequence[Standing],
    missing: Sequence[tuple[int, Mode]],
    staying: dict[int, int],
    same_class: bool,
) -> list[tuple[int, Mode]]:
    """Rule 2: adds to `staying` (instance -> pool) and returns what is still missing."""
    pools = {w.pool_id: w for w in wanted}
    left = []
    for pool_id, mode in missing:
        pool = pools[pool_id]
        fits = [
            s
            for s in running
            if s.id not in staying
            and (s.site_id, s.mode) == (pool.site_id, mode)
            and (not same_class or s.request_class == pool.request_class)
        ]
        if fits:
            staying[min(fits, key=lambda s: (s.state != READY, s.order, s.id)).id] = pool_id
        else:
            left.append((pool_id, mode))
    return left


def _start(
    missing: Sequence[tuple[int, Mode]],
    sites: Mapping[int, int],
    nodes: Sequence[NodeRoom],
    going: Sequence[Standing],
) -> tuple[list[Start], list[tuple[int, Mode]], list[tuple[int, Mode]]]:
    """Returns what starts now, what waits for a drain with its room reserved, and what fits nowhere (rule 3)."""
    free = {(node.id, kind): list(ids) for node in nodes for kind, ids in node.free.items()}
    coming: Counter[tuple[int, str]] = Counter({key: len(ids) for key, ids in free.items()})
    coming.update({(node.id, kind): count for node in nodes for kind, count in node.soon.items()})
    for s in going:
        coming[s.node_id, s.mode.gpu] += len(s.gpu_ids)
    starts, waiting, unplaceable = [], [], []
    boots = {node.id for node in nodes if node.boots}
    for pool_id, mode in sorted(missing, key=lambda item: (-item[1].tp, item[0], item[1])):
        here = [node.id for node in nodes if node.site_id == sites[pool_id]]
        fits = [node for node in here if coming[node, mode.gpu] >= mode.tp]
        now = [node for node in fits if len(free.get((node, mode.gpu), ())) >= mode.tp]
        if now:
            node = min(now, key=lambda n: (n in boots, len(free[n, mode.gpu]), n))
            ids = free[node, mode.gpu]
            starts.append(Start(pool_id, node, mode, tuple(ids[: mode.tp])))
            del ids[: mode.tp]
        elif fits:
            node = min(fits, key=lambda n: (coming[n, mode.gpu], n))
            waiting.append((pool_id, mode))
        else:
            unplaceable.append((pool_id, mode))
            continue
        coming[node, mode.gpu] -= mode.tp
    return starts, waiting, unplaceable


def _make_room(
    plan: Placement,
    standing: Sequence[Standing],
    nodes: Sequence[NodeRoom],
    sites: Mapping[int, int],
    displaced: set[int],
) -> set[int]:
    """Returns the smaller instances of one node that make room for the largest one that fits nowhere (rule 5)."""
    pool_id, mode = max(plan.unplaceable, key=lambda item: item[1].tp)
    staying = [
        s
        for s in standing
        if s.running and s.id not in plan.drains and s.id not in displaced and s.mode.gpu == mode.gpu
    ]
    best: tuple[int, set[int]] | None = None
    for node in nodes:
        if node.site_id != sites[pool_id]:
            continue
        small = sorted((s for s in staying if s.node_id == node.id and s.mode.tp < mode.tp), key=lambda s: s.mode.tp)
        there = [s for s in standing if s.node_id == node.id and s.mode.gpu == mode.gpu]
        large = sum(s.mode.tp for s in there if s in staying and s not in small)
        room = sum(s.mode.tp for s in there) + len(node.free.get(mode.gpu, ())) - large
        if room < mode.tp or not small:
            continue
        cost = sum(s.mode.tp for s in small)
        if best is None or cost < best[0]:
            best = (cost, {s.id for s in small})
    return best[1] if best else set()
