"""The same turns of a clock loop in both worlds: what instances tell of themselves, to agents and in the simulator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from django.db import transaction
from numpy.typing import NDArray

from core.controllers.clock.clock_profile import InstanceLoad
from core.engine.engine_model import gpu
from core.engine.engine_params import GpuParams
from core.engine.load_profile import LoadProfile
from core.observations import asking
from core.ports import EngineReading, InstanceStatus
from core.simulator.kernel.commands import FleetView
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.policies import Member, Plan, build, read_policy
from core.simulator.policies.dynamollm.router import DynamoRouter
from core.types import Loop, SetSmClock
from pools.agent.clocks.clock_loop import ClockLoop
from pools.agent.clocks.engine_view import EngineView
from pools.models import InstanceGpu, Node, RequestClass, Service
from pools.wire import ClockPolicy, DesiredInstance
from scheduler.control.apply import desired_messages

from .house import moment, start_instance
from .minute import Minute, rows, view, world
from .node import FakeFrequencyActuator, engine_reading, gpu_reading
from .taken_steps import Taken, every


@dataclass(frozen=True)
class Turn:
    """What each instance tells at a turn of the clock loop. `came`: requests since the turn before. `kv`: share of the
    KV cache in use; latencies, in seconds, are those of the requests that ended since then."""

    came: int = 0
    running: int = 0
    waiting: int = 0
    kv: float = 0.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def kv_tokens(self, spec: InstanceSpec) -> int:
        return int(self.kv * spec.kv_capacity)


@dataclass(frozen=True)
class Served:
    """A service whose requests are all of one length, and the turns of its clock loop."""

    minute: Minute
    turns: tuple[Turn, ...]
    period_s: float

    @classmethod
    def of(cls, minute: Minute, lengths: tuple[int, int], turns: tuple[Turn, ...], period_s: float) -> Served:
        """Returns the minute's service with all requests, declared and seen, of so many tokens."""
        assert minute.declared is not None
        came = tuple(replace(own, prompt_tokens=lengths[0], output_tokens=lengths[1]) for own in minute.came)
        return cls(replace(minute, came=came, declared=(minute.declared[0], *lengths)), turns, period_s)

    def at_s(self, n: int) -> float:
        return self.minute.now_s + n * self.period_s

    def reading(self, n: int, spec: InstanceSpec) -> EngineReading:
        """Returns what an engine's metrics say at a turn."""
        assert self.minute.declared is not None
        turn, (_, prompt_tokens, output_tokens) = self.turns[n], self.minute.declared
        ended = sum(own.came for own in self.turns[: n + 1]) - turn.running - turn.waiting
        return engine_reading(
            at_s=self.at_s(n),
            running=turn.running,
            waiting=turn.waiting,
            kv_usage=turn.kv_tokens(spec) / spec.kv_capacity,
            ttft_s=turn.ttft_s,
            tpot_s=turn.tpot_s,
            e2e_s=turn.e2e_s,
            requests_total=float(ended),
            request_prompt_tokens_total=float(ended * prompt_tokens),
            request_output_tokens_total=float(ended * output_tokens),
        )


def by_instance(steps: list[Taken]) -> list[Taken]:
    """Returns a step for each instance, as agents take them."""
    return [one for own in steps for one in (_each(own) if hasattr(own.observation, "instances") else [own])]


@dataclass(frozen=True)
class Profiled:
    """An instance as the rule by profile is given it. The profile's name says nothing."""

    now_s: float
    load: InstanceLoad
    profile: LoadProfile | None


def _each(own: Taken) -> Iterator[Taken]:
    asked_mhz = {} if own.state is None else own.state.asked_mhz
    for load in own.observation.instances:
        profile = own.observation.profiles.get(load.profile)
        seen = Profiled(own.observation.now_s, replace(load, profile=""), profile)
        commands = tuple(command for command in own.commands if command.instance == load.instance)
        yield replace(own, state=asked_mhz.get(load.instance), observation=seen, commands=commands, reason="")


# -- the simulated world ---------------------------------------------------------------------------


def simulated(served: Served, policy: str, **knobs: Any) -> list[Taken]:
    """Takes the turns in the simulator, and carries out the clocks that it sets."""
    plan = build(read_policy({"name": policy, **knobs}), world(served.minute))
    (clock,) = [own for own in plan.controls if own.name == Loop.CLOCK]
    mhz = {member.spec.name: member.spec.mhz for member in plan.members}
    found = []
    for n, turn in enumerate(served.turns):
        if isinstance(plan.router, DynamoRouter):
            plan.router.placed = dict.fromkeys(range(len(plan.members)), turn.came)
        with asking.noting() as notes:
            answer = clock.step(_view(served, n, plan, mhz))
        mhz |= {command.instance: command.mhz for command in answer.commands if isinstance(command, SetSmClock)}
        found += by_instance(every(notes))
    return found


def _view(served: Served, n: int, plan: Plan, mhz: Mapping[str, float]) -> FleetView:
    at_s, turn = served.at_s(n), served.turns[n]
    came = tuple(own for own in served.minute.came if own.at_s < at_s)
    found = view(replace(served.minute, now_s=at_s, came=came), plan)
    count = len(found.instances)

    def everywhere(value: float | None) -> NDArray[Any]:
        return np.full(count, math.nan if value is None else value)

    return replace(
        found,
        mhz=np.array([mhz[spec.name] for spec in found.instances]),
        running=everywhere(turn.running),
        waiting=everywhere(turn.waiting),
        kv_used_tokens=np.array([turn.kv_tokens(spec) for spec in found.instances]),
        ttft_s=everywhere(turn.ttft_s),
        tpot_s=everywhere(turn.tpot_s),
        e2e_s=everywhere(turn.e2e_s),
    )


# -- live ------------------------------------------------------------------------------------------


def live(served: Served, policy: str, **knobs: Any) -> list[Taken]:
    """Takes the turns in an agent, by what is published of a service with the simulator's first instances."""
    plan = build(read_policy({"name": policy, **knobs}), world(served.minute))
    specs = {member.spec.name: member.spec for member in plan.members}
    items, rule = published(served.minute, plan, policy, knobs)
    loop, mhz, found = ClockLoop(FakeFrequencyActuator()), {name: spec.mhz for name, spec in specs.items()}, []
    for n in range(len(served.turns)):
        engines = [
            _engine(item, gpu(served.minute.gpu), mhz[item.uid], served.reading(n, specs[item.uid])) for item in items
        ]
        with asking.noting() as notes:
            loop.tick(served.at_s(n), rule, engines)
        assert not loop.errors, loop.errors
        steps = by_instance(every(notes))
        mhz |= {command.instance: command.mhz for step in steps for command in step.commands}
        found += steps
    return found


def published(
    minute: Minute, plan: Plan, policy: str, knobs: Mapping[str, Any]
) -> tuple[list[DesiredInstance], ClockPolicy]:
    """Returns what is published of the plan's instances, by the plan's names, and the rule of all others. Nothing of
    it stays in the database."""
    with transaction.atomic():
        service = rows(minute, policy, knobs)
        names = {_start(service, minute, member): member.spec.name for member in plan.members}
        messages = desired_messages.desired_nodes(moment(minute.now_s), 1)
        transaction.set_rollback(True)
    items = [msgspec.structs.replace(item, uid=names[item.uid]) for node in messages for item in node.instances]
    return sorted(items, key=lambda item: list(names.values()).index(item.uid)), messages[0].clock


def _start(service: Service, minute: Minute, member: Member) -> str:
    """Starts an instance where the simulator's stands; returns its name."""
    spec, pools = member.spec, service.pools.filter(site__name=member.spec.site)
    pool = pools.filter(request_class__name=member.pool).first()
    if pool is None:  # the simulator's one pool has the service's name
        classes = RequestClass.objects.filter(partition__name=service.policy_knobs().partition)
        pool = pools.get(request_class=next(own for own in classes.order_by("rank") if _holds(own, minute)))
    for node in Node.objects.filter(cluster__site__name=spec.site).order_by("pk"):
        held = InstanceGpu.objects.filter(gpu__node=node).count()
        if node.gpus.count() - held >= spec.tp:
            return str(start_instance(pool, node, spec.tp).uid)
    raise AssertionError(f"no node has room for {spec.name}")


def _holds(own: RequestClass, minute: Minute) -> bool:
    """Says whether the service's requests are of the class."""
    assert minute.declared is not None
    _, prompt, output = minute.declared
    return own.input_min <= prompt < (own.input_max or math.inf) and own.output_min <= output < (
        own.output_max or math.inf
    )


def _engine(item: DesiredInstance, kind: GpuParams, mhz: float, reading: EngineReading) -> EngineView:
    of_kind = {"gpu_type": kind.name, "min_mhz": kind.f_min, "max_mhz": kind.f_max, "sm_clock_mhz": mhz}
    gpus = [gpu_reading(uuid, n, **of_kind) for n, uuid in enumerate(item.gpu_uuids)]
    status = InstanceStatus(item.uid, "ready", None, tuple(item.gpu_uuids), 0.0, limits=item.engine_limits)
    return EngineView.of(item, status, gpus, mhz, reading)
