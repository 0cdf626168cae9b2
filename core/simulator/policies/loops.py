"""The parts that the loops of a policy share: their place in the run, and the words of their decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from core.controllers.request.routing import class_order
from core.engine.engine_model import engine_model
from core.observations.demand.class_view import ClassView
from core.policy.tuning import SplitTuning
from core.simulator.kernel.commands import Answer, Decision, FleetView, SimCommand
from core.simulator.kernel.simulated import Handover
from core.simulator.policies.fleet_changes import SETTLE_S, Fleet
from core.simulator.policies.node_occupancy import InstanceShape
from core.simulator.policies.world import Member, PoolPlan, ServiceInfo, World
from core.types import Loop, Mode, Reason

Decisions = list[Decision]


@dataclass(frozen=True, slots=True)
class LoopControl:
    """One loop as a Control. `decide` says what is wanted, the fleet does what can be done of it now.

    Slow loops log each of their epochs; the clock loop only those that change something.
    """

    name: str
    period_s: float
    decide: Callable[[FleetView, Decisions], list[SimCommand]]
    fleet: Fleet

    def step(self, view: FleetView) -> Answer:
        decisions: Decisions = []
        commands = self.decide(view, decisions)
        commands += self.fleet.settle(view)
        if decisions and self.name != Loop.CLOCK:
            decisions[-1] = replace(
                decisions[-1], summary=decisions[-1].summary + self._unplaced(), commands=len(commands)
            )
        return Answer(tuple(commands), tuple(decisions))

    def _unplaced(self) -> str:
        stuck = Counter(f"{kind.gpu}/TP{kind.tp} at {kind.site}" for _, kind in self.fleet.unplaced)
        return "".join(f" No node has room for {count} x {name}." for name, count in sorted(stuck.items()))


def controls(found: Sequence[LoopControl], fleet: Fleet) -> tuple[LoopControl, ...]:
    """Returns the loops, and where none runs often enough, one that goes on with what is still to be done."""
    if not found or min(own.period_s for own in found) <= SETTLE_S:
        return tuple(found)
    return (*found, LoopControl("changes", SETTLE_S, lambda view, decisions: [], fleet))


def decision(view: FleetView, loop: Loop, reason: Reason, summary: str, commands: int = 0) -> Decision:
    """Makes an entry of the decision log, at the view's time."""
    return Decision(view.now_s, str(loop), str(reason), summary, commands)


def with_faults(found: Decision, views: Iterable[ClassView]) -> Decision:
    """Adds to a plan's decision which classes are not planned for as they should be, as live ones say it."""
    faults = [seen.input_faults for seen in views if seen.input_faults]
    if not faults:
        return found
    return replace(found, reason=str(Reason.INFEASIBLE), summary=" ".join([found.summary, *faults]))


def clocked(view: FleetView, reasons: Sequence[Reason]) -> Decisions:
    """Makes the entries of a clock loop's turn. `reasons`: of each instance whose clock it changes."""
    found = []
    for reason, way in ((Reason.CONGESTED, "up"), (Reason.SLACK, "down")):
        if count := reasons.count(reason):
            found.append(decision(view, Loop.CLOCK, reason, f"{count} instances clocked {way}.", count))
    return found


def pool_name(world: World, service: ServiceInfo, class_name: str) -> str:
    """Classes of the same name in two partitions share a pool: what stands there need not restart."""
    return class_name if len(world.services) == 1 else f"{service.name}/{class_name}"


def kind(service: ServiceInfo, site: str, mode: Mode) -> InstanceShape:
    """Returns the shape of a service's instances of a mode at a site."""
    return InstanceShape(site, service.model, mode.gpu, mode.tp)


def first_members(fleet: Fleet, view: FleetView) -> tuple[Member, ...]:
    """Returns what is wanted before the first second, as instances that serve from then on."""
    count: Counter[str] = Counter()
    members = []
    for start in fleet.first(view):
        count[start.spec.name] += 1
        spec = replace(start.spec, name=f"{start.spec.name}-{count[start.spec.name]}")
        members.append(Member(spec, start.pool, start.weight))
    return tuple(members)


def plans(names: Iterable[str], routing: str) -> tuple[PoolPlan, ...]:
    """Returns the plan of each pool, all of one routing."""
    return tuple(PoolPlan(name, routing) for name in names)


def class_plans(services: Iterable[Sequence[str]], routing: str, engine_queue: int) -> tuple[PoolPlan, ...]:
    """Returns the plan of each pool. Requests for which the pool of their class has no room go to another class's.

    Args:
        services: The pools of each, in the order of their classes.
        engine_queue: Requests without a first token that an instance should have.
    """
    return tuple(
        PoolPlan(name, routing, most_unstarted=engine_queue, spills=spills(names, rank))
        for names in services
        for rank, name in enumerate(names)
    )


def handover(world: World, service: ServiceInfo, to: str, tuned: SplitTuning) -> Handover:
    """Returns how a service's requests go on to another pool after their prompt."""
    spec = next(spec for spec in world.templates if spec.model == service.model)
    token_bytes = engine_model(spec.model, spec.gpu, spec.tp, spec.engine).constants.kv_bytes
    token_s = token_bytes / (tuned.link_gb_per_s * 1e9)
    return Handover(to, "prompt", token_s, tuned.latency_s, tuned.chunked)


def spills(names: Sequence[str], rank: int) -> tuple[str, ...]:
    """Returns the other classes' pools in the order in which they are asked, as a gateway does."""
    others = [other for other in range(len(names)) if other != rank]
    return tuple(names[other] for other in sorted(others, key=lambda other: class_order(other, rank)))
