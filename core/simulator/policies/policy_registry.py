"""All simulated policies by name: how each is read from its section of a scenario, and how it begins."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Protocol

from core.policy.knobs import Knobs
from core.policy.old_names import MOVED, REPLACED, merged, renamed
from core.policy.presets import OLD_NAMES, PRESETS, Policy, policy
from core.policy.setting_texts import SETTINGS, by_name, stored, value_of
from core.simulator.fields import ScenarioError, Section
from core.simulator.policies import dynamollm, dynaserve, greenserve, muserve, static, throttllem
from core.simulator.policies.config import (
    FREESH_READS,
    THRESHOLD_READS,
    Reads,
    freesh_of,
    threshold_of,
)
from core.simulator.policies.freesh import Freesh
from core.simulator.policies.service_lots import Lot, begin_in_lots, lots
from core.simulator.policies.threshold import Threshold
from core.simulator.policies.world import Plan, World
from core.types import Loop


class PolicyConfig(Protocol):
    """A scenario's settings of its policy; each policy has a frozen dataclass of its own."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Family:
    """The policies that one builder makes. `of` takes from a policy what `reads` lists; `begin` makes a plan.

    `lot`: of a policy for one service, the part of a fleet that it is for: each service gets one of its own. `check`
    raises SimulationError, as `begin` would, for a world that the policy cannot serve.
    """

    reads: Reads
    of: Callable[[Policy], PolicyConfig]
    begin: Callable[[Any, World], Plan]
    lot: Lot | None = None
    check: Callable[[Any, World], None] = lambda config, world: None


FAMILIES: Mapping[str, Family] = {
    "threshold": Family(THRESHOLD_READS, threshold_of, lambda config, world: Threshold(config, world).begin()),
    "freesh": Family(FREESH_READS, freesh_of, lambda config, world: Freesh(config, world).begin()),
    "dynamo": Family(dynamollm.READS, dynamollm.of, dynamollm.begin, Lot.SERVERS),
    "throttle": Family(throttllem.READS, throttllem.of, throttllem.begin, check=throttllem.check),
    "split": Family(dynaserve.READS, dynaserve.of, dynaserve.begin, Lot.SITE),
    "greenserve": Family(greenserve.READS, greenserve.of, greenserve.begin),
    "placement": Family(muserve.READS, muserve.of, muserve.begin),
    "static": Family(static.READS, static.of, static.begin),
}
POLICIES = tuple(PRESETS)


def read_policy(keys: Mapping[str, Any], usual_s: Mapping[Loop, float] = MappingProxyType({})) -> PolicyConfig:
    """Reads a policy from its section of a scenario: `name`, knobs, and `tuning` by record.

    Args:
        usual_s: The periods of loops to which the policy gives none, where they are not the usual ones.

    Raises:
        ScenarioError: An unknown name or key, one that the policy's simulated loops do not read, or a wrong value.
    """
    name = Section("policy", keys).text("name")
    name = OLD_NAMES.get(name, name)
    if name not in POLICIES:
        raise ScenarioError(f"policy: unknown '{name}'; known: {', '.join(POLICIES)}")
    preset, written = PRESETS[name], dict[str, str]()
    family = FAMILIES[preset.family]
    try:
        own, written = renamed(preset, {key: value for key, value in keys.items() if key != "name"})
        _check_known(preset, family.reads, own)
        found = policy(name, own)
        _check_read(found, family.reads)
        return family.of(replace(found, knobs=found.knobs.at_usual_periods(usual_s)))
    except ValueError as error:
        key, sign, words = str(error).partition(": ")
        raise ScenarioError(f"policy.{written.get(key, key)}{sign}{words}" if sign else f"policy: {error}") from None


def read_live(found: Policy) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the settings of a live policy that its simulated loops read, as a scenario has them, and the names of the
    others."""
    reads, kept, left = FAMILIES[found.family].reads, dict[str, Any](), list[str]()
    for name, value in by_name(found.overrides).items():
        try:
            _check_setting(found, name, reads)
        except ValueError:
            left.append(name)
        else:
            kept[name] = value
    return stored(kept), tuple(left)


def put_over(own: Mapping[str, Any], given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a scenario's keys of a policy with a run's put over them; a policy of another name has none of them.

    Raises:
        ScenarioError: A key by an old name has no value of its kind.
    """
    name = OLD_NAMES.get(name, name)
    if name not in POLICIES or OLD_NAMES.get(own.get("name", ""), own.get("name")) != name or len(own) == 1:
        return {**given, "name": name}
    try:
        below, over = (
            renamed(PRESETS[name], {key: value for key, value in keys.items() if key != "name"})[0]
            for keys in (own, given)
        )
    except ValueError as error:
        raise ScenarioError(f"policy.{error}") from None
    tuned = {"tuning": merged(below.get("tuning", {}), over["tuning"])} if "tuning" in over else {}
    return {**below, **over, **tuned, "name": name}


def _check_known(preset: Policy, reads: Reads, own: Mapping[str, Any]) -> None:
    known = {"tuning", *(item.name for item in fields(Knobs))}
    for key in own:
        if key not in known:
            raise ValueError(f"{key}: unknown field; {_hint(preset, reads, str(key))}")


def _check_read(found: Policy, reads: Reads) -> None:
    """Raises ValueError for what the family's simulated loops do not read, where it is not as in the preset."""
    for name in by_name(found.overrides):
        _check_setting(found, name, reads)


def _check_setting(found: Policy, name: str, reads: Reads) -> None:
    preset = PRESETS[found.name]
    value, record, path = value_of(found, name), name.partition(".")[0], f"tuning.{name}" if "." in name else name
    if value == value_of(preset, name):
        return
    if name in reads.knobs:
        choices = reads.knobs[name]
        if choices and value not in choices:
            raise ValueError(f"{name}: unknown '{value}'; known: {', '.join(choices)}")
    elif name not in reads.tuning and record not in reads.tuning:
        only, known = SETTINGS[name].metadata["only"], _known(preset, reads)
        why = only.why if only and only.world == "live" else known
        raise ValueError(f"{path}: does nothing in a simulated {preset.name}; {why}")


def _hint(preset: Policy, reads: Reads, key: str) -> str:
    spelled = {name: name for name in (*reads.knobs, *MOVED[preset.family], *REPLACED[preset.family])}
    for record in reads.tuning:
        name, _, single = record.partition(".")
        for item in fields(getattr(preset.tuning, name)):
            if single in ("", item.name):
                spelled.setdefault(item.name, f"tuning.{name}.{item.name}")
    near = difflib.get_close_matches(key, spelled, 1)
    return f"did you mean {spelled[near[0]]}?" if near else _known(preset, reads)


def _known(preset: Policy, reads: Reads) -> str:
    names = [*sorted(reads.knobs), *(f"tuning.{record}" for record in reads.tuning)]
    return f"known here: {', '.join(names)}" if names else f"{preset.name} has no settings"


def check(config: PolicyConfig, world: World) -> None:
    """Raises SimulationError for a policy that cannot serve such a world, as `build` would, without making a plan."""
    family = FAMILIES[PRESETS[config.name].family]
    family.check(config, world)
    if family.lot is not None:
        lots(world, family.lot)


def build(config: PolicyConfig, world: World) -> Plan:
    """Builds the first fleet, the loops and the router of a policy.

    Static policies need none where the scenario's groups are their fleet.

    Raises:
        SimulationError: The world does not fit together, or its first instances find no GPUs.
    """
    family = FAMILIES[PRESETS[config.name].family]
    if family.lot is None:
        return family.begin(config, world)
    return begin_in_lots(family.begin, config, world, family.lot)
