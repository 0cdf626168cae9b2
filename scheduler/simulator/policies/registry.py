"""All policies by name: how each reads its section of a scenario, and how it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from scheduler.simulator.fields import ScenarioError, Section
from scheduler.simulator.policies.config import STATIC, StaticConfig, read_freesh, read_threshold
from scheduler.simulator.policies.dynamollm import Dynamollm
from scheduler.simulator.policies.dynamollm_config import PRESETS as DYNAMOLLM
from scheduler.simulator.policies.dynamollm_config import read_dynamollm
from scheduler.simulator.policies.dynaserve import NAMES as DYNASERVE
from scheduler.simulator.policies.dynaserve import begin as begin_dynaserve
from scheduler.simulator.policies.dynaserve import read_dynaserve
from scheduler.simulator.policies.freesh import Freesh
from scheduler.simulator.policies.muserve import NAMES as MUSERVE
from scheduler.simulator.policies.muserve import begin as begin_muserve
from scheduler.simulator.policies.muserve import read_muserve
from scheduler.simulator.policies.threshold import Threshold
from scheduler.simulator.policies.throttllem import NAMES as THROTTLLEM
from scheduler.simulator.policies.throttllem import begin as begin_throttllem
from scheduler.simulator.policies.throttllem import read_throttllem
from scheduler.simulator.policies.world import Plan, World


class PolicyConfig(Protocol):
    """What a scenario says of its policy; each policy has a frozen dataclass of its own."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """`read` takes what the section says (`read_policy` refuses the keys it did not ask for); `begin` makes a plan."""

    read: Callable[[Section], PolicyConfig]
    begin: Callable[[Any, World], Plan]


DYNAMIC: dict[str, Kind] = {
    "threshold": Kind(read_threshold, lambda config, world: Threshold(config, world).begin()),
    "freesh": Kind(read_freesh, lambda config, world: Freesh(config, world).begin()),
    "min_energy": Kind(read_freesh, lambda config, world: Freesh(config, world).begin()),
    **{name: Kind(read_dynamollm, lambda config, world: Dynamollm(config, world).begin()) for name in DYNAMOLLM},
    **{name: Kind(read_throttllem, begin_throttllem) for name in THROTTLLEM},
    **{name: Kind(read_dynaserve, begin_dynaserve) for name in DYNASERVE},
    **{name: Kind(read_muserve, begin_muserve) for name in MUSERVE},
}
POLICIES = (*STATIC, *DYNAMIC)


def read_policy(keys: Mapping[str, Any]) -> PolicyConfig:
    """A policy from its section of a scenario, whose `name` says which keys it knows.

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


def build(config: PolicyConfig, world: World) -> Plan:
    """The first fleet, the loops and the router of a policy. Static policies need none: the groups are their fleet.

    Raises:
        SimulationError: The world does not fit together, or its first instances find no GPUs.
    """
    return DYNAMIC[config.name].begin(config, world)
