"""All policies by name: how each reads its section of a scenario, and how it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from core.simulator.fields import ScenarioError, Section
from core.simulator.policies import dynamollm, dynaserve, greenserve, muserve, throttllem
from core.simulator.policies.config import FREESH, STATIC, StaticConfig, read_freesh, read_threshold
from core.simulator.policies.freesh import Freesh
from core.simulator.policies.service_slices import Lot, begin_in_slices, slices
from core.simulator.policies.threshold import Threshold
from core.simulator.policies.world import Plan, World


class PolicyConfig(Protocol):
    """A scenario's settings of its policy; each policy has a frozen dataclass of its own."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PolicyFactory:
    """`read` takes what the section says (`read_policy` refuses the keys it did not ask for); `begin` makes a plan.

    `lot`: of a policy for one service, the part of a fleet that it is for: each service gets one of its own.
    """

    read: Callable[[Section], PolicyConfig]
    begin: Callable[[Any, World], Plan]
    lot: Lot | None = None


DYNAMIC: dict[str, PolicyFactory] = {
    "threshold": PolicyFactory(read_threshold, lambda config, world: Threshold(config, world).begin()),
    **{name: PolicyFactory(read_freesh, lambda config, world: Freesh(config, world).begin()) for name in FREESH},
    **{name: PolicyFactory(dynamollm.read_dynamollm, dynamollm.begin, Lot.SERVERS) for name in dynamollm.NAMES},
    **{name: PolicyFactory(throttllem.read_throttllem, throttllem.begin) for name in throttllem.NAMES},
    **{name: PolicyFactory(dynaserve.read_dynaserve, dynaserve.begin, Lot.SITE) for name in dynaserve.NAMES},
    **{name: PolicyFactory(greenserve.read_greenserve, greenserve.begin) for name in greenserve.NAMES},
    **{name: PolicyFactory(muserve.read_muserve, muserve.begin) for name in muserve.NAMES},
}
POLICIES = (*STATIC, *DYNAMIC)


def read_policy(keys: Mapping[str, Any]) -> PolicyConfig:
    """Reads a policy from its section of a scenario, whose `name` says which keys it knows.

    Raises:
        ScenarioError: An unknown name or key, or a value out of range.
    """
    section = Section("policy", keys)
    name = section.text("name")
    if name not in POLICIES:
        raise ScenarioError(f"policy: unknown '{name}'; known: {', '.join(POLICIES)}")
    found = StaticConfig(name) if name in STATIC else DYNAMIC[name].read(section)
    section.finish()
    return found


def check(config: PolicyConfig, world: World) -> None:
    """Raises SimulationError for a policy that cannot serve such a world, as `build` would, without making a plan."""
    if config.name in DYNAMIC and (lot := DYNAMIC[config.name].lot) is not None:
        slices(world, lot)


def build(config: PolicyConfig, world: World) -> Plan:
    """Builds the first fleet, the loops and the router of a policy.

    Static policies need none: the groups are their fleet.

    Raises:
        SimulationError: The world does not fit together, or its first instances find no GPUs.
    """
    factory = DYNAMIC[config.name]
    if factory.lot is None:
        return factory.begin(config, world)
    return begin_in_slices(factory.begin, config, world, factory.lot)
