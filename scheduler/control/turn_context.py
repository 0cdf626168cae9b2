"""What an epoch of a service is decided and carried out with: read once, at one moment, and passed on.

Asked for again by each that needs it, an override that ends meanwhile would split an epoch: planned around a pinned
pool, and carried out as if nobody had pinned it.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime

from core.policy.knobs import Knobs
from core.policy.presets import Policy
from core.policy.tuning import Tuning
from core.types import CarbonPlan, Loop
from pools import engine_knowledge
from pools.models import Partition, Pool, Service
from scheduler.control import active_operations, loop_times, service_policy
from scheduler.control.active_operations import Pin
from scheduler.control.loop_times import LoopTimes
from scheduler.json_values import plan_from_json
from scheduler.models import ControllerState


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A service at one moment, and the policy that its loops run. `knobs`: with the partition that an override pins.
    `advisory`: it only advises beside the one in force, with states of its own.

    `signature`: changes with whatever the loops are to decide anew for. `drained`: the sites that people drain, by id.
    `reporting`: the nodes that report. `plan`: the carbon plan in force. `pools`: those of the partition in force.
    """

    service: Service
    now: datetime
    policy: Policy
    knobs: Knobs
    signature: str
    times: LoopTimes
    pins: tuple[Pin, ...]
    drained: frozenset[int]
    reporting: frozenset[str]
    plan: CarbonPlan | None
    pools: tuple[Pool, ...]
    advisory: bool = False

    def state_kind(self, loop: Loop) -> str:
        """Returns the kind of the ControllerState of a loop."""
        return state_kind(loop, self.advisory)

    @property
    def family(self) -> str:
        return self.policy.family

    @property
    def tuning(self) -> Tuning:
        return self.policy.tuning

    def with_plan(self, plan: CarbonPlan | None, partition: Partition, pools: Iterable[Pool]) -> TurnContext:
        """Returns the context as it will be once a plan is carried out, with the partition and the pools of then."""
        service = copy(self.service)
        service.partition = partition
        active = tuple(pool for pool in pools if pool.request_class.partition_id == partition.pk)
        return replace(self, service=service, plan=plan, pools=active)


def state_kind(loop: Loop, advisory: bool) -> str:
    return f"advice.{loop.value}" if advisory else loop.value


def resolve(
    service: Service, now: datetime, reporting: Iterable[str], policy: Policy | None = None, advisory: bool = False
) -> TurnContext:
    """Reads what is in force at `now`. `policy`: that the loops are to run; None: the one that decides."""
    engine_knowledge.refresh()
    overrides = active_operations.planned_around(service, now)
    own = policy or service_policy.deciding(service)
    knobs = service_policy.with_overrides(own, overrides)
    active = service.pools.filter(request_class__partition=service.partition_id)
    return TurnContext(
        service=service,
        now=now,
        policy=own,
        knobs=knobs,
        signature=service_policy.signature_with(own, overrides),
        times=loop_times.times(knobs, own.tuning.eq1.steps),
        pins=active_operations.pins_of(overrides),
        drained=active_operations.drained_of(overrides),
        reporting=frozenset(reporting),
        plan=carbon_plan(service, advisory),
        pools=tuple(active.select_related("site", "request_class")),
        advisory=advisory,
    )


def carbon_plan(service: Service, advisory: bool = False) -> CarbonPlan | None:
    """Returns the carbon plan in force, or that of the policy that advises; None where there is none yet."""
    state = ControllerState.objects.filter(kind=state_kind(Loop.CARBON, advisory), service=service).first()
    return plan_from_json(state.value) if state else None
