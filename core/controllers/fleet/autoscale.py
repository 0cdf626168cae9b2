"""throttLL'eM's autoscaler (IV-D): the smallest engine whose profiled maximum load covers the present one.

Every 10 s, by tensor parallelism, with shadow instances: the next engine warms up while the present one serves. A new
engine has a grace period as long as it took to spawn, renewed whenever the load is within its range; within it a larger
engine may take over at any time, a smaller one never. The range of an engine reaches from the maximum of the next
smaller one, not included, to its own.

What the paper leaves open: a shadow that warms up is given up when the load has outgrown it, for a larger one, or for
the engine that serves when that is needed again; one that is too large takes over all the same, since it may be needed
soon. And grace starts when the engine takes over, since until then it cannot show what it is good for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from core.controllers.basis import basis_json
from core.engine.measured import Basis
from core.types import Alternative, CancelShadow, Command, Effects, Mode, Rationale, Reason, StartShadow


@dataclass(frozen=True, slots=True)
class EngineSize:
    """A size the engine may have. `max_rps`: profiled, without long tails (V-A). `spawn_s`: until it can serve.

    `basis`: what `max_rps` rests on; None: somebody set it.
    """

    mode: Mode
    max_rps: float
    spawn_s: float
    basis: Basis | None = None


@dataclass(frozen=True, slots=True)
class AutoscaleConfig:
    """The sizes, from the smallest to the largest: each must carry more than the one before."""

    sizes: tuple[EngineSize, ...]
    period_s: float = 10.0

    def __post_init__(self) -> None:
        loads = [size.max_rps for size in self.sizes]
        degrees = [size.mode.tp for size in self.sizes]
        if not loads or loads[0] <= 0.0 or self.period_s <= 0.0 or min(size.spawn_s for size in self.sizes) < 0.0:
            raise ValueError("the autoscaler needs sizes with a maximum load, spawn times from 0 and a period")
        for name, values in (("max_rps", loads), ("tp", degrees)):
            if any(after <= before for before, after in pairwise(values)):
                raise ValueError(f"the sizes must ascend in {name}, not go {values}")


@dataclass(frozen=True, slots=True)
class AutoscaleObservation:
    """An engine, the one that warms up to replace it, and the load measured over the last period."""

    now_s: float
    instance: str
    mode: Mode
    shadow: Mode | None
    rps: float | None


@dataclass(frozen=True, slots=True)
class AutoscaleState:
    """The engine that served when last seen, and until when it is spared a smaller one."""

    mode: Mode
    grace_until_s: float


def step(
    state: AutoscaleState | None, obs: AutoscaleObservation, config: AutoscaleConfig
) -> tuple[AutoscaleState, Effects]:
    """Decides one period.

    Raises:
        ValueError: The engine that serves is not among the sizes.
    """
    now = _index(config, obs.mode)
    if now is None:
        raise ValueError(f"{obs.mode.name} is not among the sizes of the autoscaler")
    grace_s = obs.now_s + config.sizes[now].spawn_s
    if state is None or state.mode != obs.mode:  # it has just taken over
        state = AutoscaleState(obs.mode, grace_s)
    if obs.rps is None:
        return state, _effects(obs, config, state, (), Reason.NO_DATA, "the load is not known")
    need = covering(config, obs.rps)
    if need == now and obs.rps <= config.sizes[now].max_rps:
        state = AutoscaleState(obs.mode, max(grace_s, state.grace_until_s))
    commands, reason, text = _decide(state, obs, config, now, need)
    return state, _effects(obs, config, state, commands, reason, f"{obs.rps:.3g} requests/s: {text}")


def covering(config: AutoscaleConfig, rps: float) -> int:
    """Returns the smallest size whose maximum covers the load; the largest when none does."""
    return next((n for n, size in enumerate(config.sizes) if rps <= size.max_rps), len(config.sizes) - 1)


def _decide(
    state: AutoscaleState, obs: AutoscaleObservation, config: AutoscaleConfig, now: int, need: int
) -> tuple[tuple[Command, ...], Reason, str]:
    wanted = config.sizes[need].mode
    shadow = None if obs.shadow is None else _index(config, obs.shadow)
    if obs.shadow is not None:
        if shadow is not None and need <= shadow:
            return (), Reason.NO_CHANGE, f"{obs.shadow.name} warms up"
        if need == now:
            return (CancelShadow(obs.instance),), Reason.CONGESTED, f"{obs.mode.name} is needed again"
        commands = (CancelShadow(obs.instance), StartShadow(obs.instance, wanted))
        return commands, Reason.CONGESTED, f"{obs.shadow.name}, which warms up, is too small; {wanted.name} instead"
    if need > now:
        return (StartShadow(obs.instance, wanted),), Reason.CONGESTED, f"{obs.mode.name} -> {wanted.name}"
    if need == now:
        if obs.rps is not None and obs.rps > config.sizes[now].max_rps:
            return (), Reason.AT_LIMIT, f"more than {obs.mode.name} carries, and there is nothing larger"
        return (), Reason.NO_CHANGE, f"within the range of {obs.mode.name}"
    if obs.now_s < state.grace_until_s:
        left_s = state.grace_until_s - obs.now_s
        return (), Reason.GRACE, f"{wanted.name} would do, {obs.mode.name} has {left_s:.3g} s of grace left"
    return (StartShadow(obs.instance, wanted),), Reason.SLACK, f"{obs.mode.name} -> {wanted.name}"


def _index(config: AutoscaleConfig, mode: Mode) -> int | None:
    return next((n for n, size in enumerate(config.sizes) if size.mode == mode), None)


def _effects(
    obs: AutoscaleObservation,
    config: AutoscaleConfig,
    state: AutoscaleState,
    commands: tuple[Command, ...],
    reason: Reason,
    text: str,
) -> Effects:
    started = {command.mode for command in commands if isinstance(command, StartShadow)} or {obs.mode}
    inputs: dict[str, Any] = {
        "rps": obs.rps,
        "mode": obs.mode.name,
        "shadow": None if obs.shadow is None else obs.shadow.name,
        "grace_until_s": state.grace_until_s,
        "max_rps": {size.mode.name: size.max_rps for size in config.sizes},
        "profiles": {size.mode.name: basis_json(size.basis) for size in config.sizes if size.basis is not None},
    }
    weighed = tuple(
        Alternative(
            size.mode.name,
            chosen=size.mode in started,
            feasible=obs.rps is None or obs.rps <= size.max_rps,
            failed=None if obs.rps is None or obs.rps <= size.max_rps else f"carries {size.max_rps:g} requests/s",
        )
        for size in config.sizes
    )
    rationale = Rationale(reason, f"{obs.instance}: {text}.", inputs, weighed)
    return Effects(commands, obs.now_s + config.period_s, rationale)
