"""Servers: those that no instance needs are switched off, and on again before they are needed. Pure.

When to switch off is the ski-rental problem, as with sleep: a server stays on until idling has cost as much as
switching it off and booting it does (Karlin, Manasse, Rudolph, Sleator: Competitive Snoopy Caching, Algorithmica 3,
1988). A machine that boots draws about what it draws idle, so that the idle power cancels out and the break-even is a
time.

Instances are planned on servers that are off, too; a server with one is switched on. Beside that, as many free GPUs
stay on as the load could come to need before a server has booted: the spare ones, which the forecast says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from core.types import Command, Effects, Rationale, Reason, SwitchServer

Place = tuple[str, str]  # (site, GPU type)
SHUTDOWN_S = 60.0  # until a machine without engines is off


@dataclass(frozen=True, slots=True)
class Server:
    """A server with a power port.

    Attributes:
        gpus: By the type that plans count.
        on: It runs, or boots.
        wanted: Instances are to run on it.
        idle_s: Since its last instance ended, or since it booted.
        boot_s: From being switched on until its agent reports; `boot_source` says where it is from.
        kept: Why it is not switched off, whatever else; empty: it may be.
        idle_w: What its GPUs draw without engines, without the rest of the machine; None: not known.
    """

    name: str
    site: str
    gpus: Mapping[str, int]
    on: bool
    wanted: bool
    idle_s: float
    boot_s: float
    boot_source: str = "assumed"
    kept: str = ""
    idle_w: float | None = None


@dataclass(frozen=True, slots=True)
class ServersObservation:
    """The servers that can be switched, at one moment.

    Attributes:
        free: GPUs without an instance on servers that run or boot, those that cannot be switched included.
        spare: GPUs that the load could come to need within the time to boot.
        alone: Sites at which one server is to stay on, since a service has a floor there.
        on: How many servers run or boot at each site, those that cannot be switched included.
    """

    now_s: float
    servers: tuple[Server, ...]
    free: Mapping[Place, int] = field(default_factory=dict)
    spare: Mapping[Place, int] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()
    on: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServersConfig:
    """`idle_s`: after which a server is switched off; None: when idling has cost what a boot does. `boot_power`: times
    its idle power that a machine draws while it boots or ends."""

    idle_s: float | None = None
    boot_power: float = 1.0

    def patience_s(self, server: Server) -> float:
        return self.boot_power * (server.boot_s + SHUTDOWN_S) if self.idle_s is None else self.idle_s


def step(state: None, observation: ServersObservation, config: ServersConfig) -> tuple[None, Effects]:
    """Decides which servers are switched on and off."""
    why: dict[str, str] = {}
    free = Counter(observation.free)
    commands: list[Command] = []
    for own in observation.servers:
        if own.wanted and not own.on:
            commands.append(SwitchServer(own.name, on=True))
            why[own.name] = f"{own.name} is switched on: instances are to run on it, in {_took(own)}."
    commands += _kept_spare(observation, free, why)
    on = Counter(observation.on)
    for own in sorted(observation.servers, key=lambda own: (-own.idle_s, own.name)):
        if _may_go(own, observation, config, free, on):
            free.subtract(_places(own))
            on[own.site] -= 1
            commands.append(SwitchServer(own.name, on=False))
            why[own.name] = _why_off(own, config)
    reason = Reason.NO_CHANGE
    if commands:
        turned_on = any(isinstance(command, SwitchServer) and command.on for command in commands)
        reason = Reason.CONGESTED if turned_on else Reason.SLACK
    summary = " ".join(why.values()) or "No server is switched."
    return None, Effects(tuple(commands), None, Rationale(reason, summary, _inputs(observation, config, why)))


def _kept_spare(observation: ServersObservation, free: Counter[Place], why: dict[str, str]) -> Iterable[Command]:
    """Switches servers on until as many GPUs are free as the forecast wants, those first that boot soonest."""
    off = [own for own in observation.servers if not own.on and not own.wanted]
    for place, count in sorted(observation.spare.items()):
        for own in sorted(off, key=lambda own: (own.boot_s, own.name)):
            if free[place] >= count:
                break
            if own.name in why or place not in _places(own):
                continue
            free.update(_places(own))
            why[own.name] = (
                f"{own.name} is switched on: {count} {place[1]} at {place[0]} could be needed within {_took(own)}."
            )
            yield SwitchServer(own.name, on=True)


def _may_go(
    own: Server, observation: ServersObservation, config: ServersConfig, free: Counter[Place], on: Counter[str]
) -> bool:
    if not own.on or own.wanted or own.kept or own.idle_s < config.patience_s(own):
        return False
    if own.site in observation.alone and on[own.site] <= 1:
        return False
    return all(free[place] - count >= observation.spare.get(place, 0) for place, count in _places(own).items())


def _places(own: Server) -> dict[Place, int]:
    return {(own.site, gpu): count for gpu, count in own.gpus.items()}


def _took(own: Server) -> str:
    return f"{own.boot_s:.0f} s ({own.boot_source})"


def _why_off(own: Server, config: ServersConfig) -> str:
    saved = "" if own.idle_w is None else f"; its GPUs alone drew {own.idle_w:.0f} W"
    text = f"{own.name} is switched off: no instance for {own.idle_s:.0f} s"
    if config.idle_s is not None:
        return f"{text}, as long as policies have it wait{saved}."
    return f"{text}, in which idling cost what a boot of {_took(own)} does{saved}."


def _inputs(observation: ServersObservation, config: ServersConfig, why: Mapping[str, str]) -> dict[str, object]:
    servers = {
        own.name: {
            **{"on": own.on, "wanted": own.wanted, "idle_s": own.idle_s, "patience_s": config.patience_s(own)},
            **{"boot_s": own.boot_s, "boot_source": own.boot_source, "kept": own.kept, "idle_w": own.idle_w},
            "why": why.get(own.name, ""),
        }
        for own in observation.servers
    }
    spare = {f"{site}/{gpu}": count for (site, gpu), count in observation.spare.items()}
    return {"servers": servers, "spare_gpus": spare, "alone": sorted(observation.alone)}
