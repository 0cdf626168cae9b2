"""mu-Serve's and AlpaServe's placement of models as a loop (section 3.2): made once, and made anew only where it must.

Both papers place offline. Here too a placement stays, while it has its GPUs and carries what comes. mu-Serve names one
more sign (section 3.4): a model whose clock is at its top, and wanted higher again and again, needs another replica. It
gets one on GPUs that are free, and nothing else moves.

Which placements there are is the world's to search (`PlacementOption`): a simulated device has several models, a live
one has one. Which of them is taken, and when, is decided here for both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from core.algorithms.placement.own_gpus import Place
from core.controllers.fleet.explain import workers_text
from core.types import Alternative, Effects, Mode, PoolDecision, PoolKey, Rationale, Reason, ScaleTo

ALPASERVE, POWER_AWARE = "alpaserve", "power_aware"
TOLERANCE = 0.01  # of attainment, that mu-Serve's devices may cost beside AlpaServe's


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """A placement: replicas by (site, model, mode), and the share of requests that it serves in time."""

    replicas: Mapping[Place, int]
    attainment: float


@dataclass(frozen=True, slots=True)
class PlacementObservation:
    """`options`: by kind. `present`: replicas that there are to be. `stands`: they have their GPUs.

    `attainment`: of the present ones under the load of now; None: not asked. `starved`: models that want more than the
    top clock. `room`: where one more replica of such a model stands, the best place first.
    """

    now_s: float
    options: Mapping[str, PlacementOption]
    present: Mapping[Place, int] = field(default_factory=dict)
    stands: bool = True
    attainment: float | None = None
    starved: tuple[str, ...] = ()
    room: Mapping[str, tuple[tuple[str, Mode], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacingConfig:
    """`kind`: whose placement. `goal`: attainment that is enough. `settle_s`: after a replica was added for a model,
    until another may be: it starts, and takes its part of the load."""

    kind: str
    goal: float = 0.99
    look_s: float = 30.0
    settle_s: float = 300.0

    def __post_init__(self) -> None:
        if self.kind not in (ALPASERVE, POWER_AWARE) or not 0.0 < self.goal <= 1.0:
            raise ValueError(f"kind is {ALPASERVE} or {POWER_AWARE}, and goal a share above 0")
        if min(self.look_s, self.settle_s) <= 0.0:
            raise ValueError("look_s and settle_s are above 0")


@dataclass(frozen=True, slots=True)
class PlacementState:
    """`kind`: of the placement in force. `grown_s`: when each model last got another replica."""

    kind: str
    grown_s: Mapping[str, float] = field(default_factory=dict)


def step(
    state: PlacementState | None, obs: PlacementObservation, config: PlacingConfig
) -> tuple[PlacementState | None, Effects]:
    """Decides whether the placement stays: a ScaleTo for each site and model whose replicas change."""
    kind, best = _chosen(obs, config)
    if best is None or not best.replicas:
        text = "No placement serves any request in time: no node that reports has GPUs that can."
        return state, _effects(obs, config, obs.present, Rationale(Reason.INFEASIBLE, text, _inputs(obs, config)))
    if state is None:
        return _placed(kind, best, obs, config, "placed")
    if not obs.stands:
        return _placed(kind, best, obs, config, "placed anew, since the fleet has no room for what was placed")
    enough = min(best.attainment, config.goal) - TOLERANCE
    if obs.attainment is not None and obs.attainment < enough:
        why = f"placed anew, since {obs.attainment:.1%} of the requests found capacity"
        return _placed(kind, best, obs, config, why)
    short = [m for m in obs.starved if obs.now_s - state.grown_s.get(m, -config.settle_s) >= config.settle_s]
    if short:
        return _grown(state, short, obs, config)
    text = "The placement stays."
    return state, _effects(obs, config, obs.present, Rationale(Reason.NO_CHANGE, text, _inputs(obs, config)))


def _chosen(obs: PlacementObservation, config: PlacingConfig) -> tuple[str, PlacementOption | None]:
    """Returns mu-Serve's placement where it is asked for and serves about as many in time, else AlpaServe's."""
    groups, own = obs.options.get(ALPASERVE), obs.options.get(config.kind)
    if own is None or groups is None:
        return ALPASERVE, groups
    late = own.attainment < min(groups.attainment, config.goal) - TOLERANCE
    return (ALPASERVE, groups) if late else (config.kind, own)


def _placed(
    kind: str, best: PlacementOption, obs: PlacementObservation, config: PlacingConfig, how: str
) -> tuple[PlacementState, Effects]:
    reason, words = Reason.HEURISTIC, f"Models are {how}: {best.attainment:.1%} of the requests in time"
    if kind != config.kind:
        reason = Reason.WOULD_VIOLATE
        words += ", as AlpaServe places them, since on fewer GPUs more would be late"
    rationale = Rationale(reason, f"{words}. {_spelled(best.replicas)}", _inputs(obs, config), _weighed(kind, obs))
    return PlacementState(kind), _effects(obs, config, best.replicas, rationale)


def _grown(
    state: PlacementState, short: Sequence[str], obs: PlacementObservation, config: PlacingConfig
) -> tuple[PlacementState, Effects]:
    """Adds a replica for the first model that has room; one at a time, since two may want the same GPUs."""
    wants = f"{', '.join(short)}: the clock is at its top, and wanted higher"
    for model in short:
        for site, mode in obs.room.get(model, ()):
            replicas = Counter(obs.present)
            replicas[site, model, mode] += 1
            text = f"{wants}. {model} gets another replica, {mode.name} at {site}."
            after = replace(state, grown_s={**state.grown_s, model: obs.now_s})
            rationale = Rationale(Reason.CONGESTED, text, _inputs(obs, config))
            return after, _effects(obs, config, replicas, rationale)
    text = f"{wants}. No free GPUs hold another replica."
    return state, _effects(obs, config, obs.present, Rationale(Reason.AT_LIMIT, text, _inputs(obs, config)))


def _effects(
    obs: PlacementObservation, config: PlacingConfig, after: Mapping[Place, int], rationale: Rationale
) -> Effects:
    keys = sorted({PoolKey(site, model) for site, model, _ in (*obs.present, *after)})
    changed = [(key, now) for key in keys if (now := _of(after, key)) != _of(obs.present, key)]
    commands = tuple(ScaleTo(key, workers) for key, workers in changed)
    decisions = tuple(PoolDecision(key, workers, True, rationale) for key, workers in changed)
    return Effects(commands, obs.now_s + config.look_s, rationale, decisions)


def _of(replicas: Mapping[Place, int], key: PoolKey) -> dict[Mode, int]:
    own = (key.site, key.request_class)
    return {mode: n for (site, model, mode), n in sorted(replicas.items()) if n and (site, model) == own}


def _spelled(replicas: Mapping[Place, int]) -> str:
    keys = sorted({PoolKey(site, model) for site, model, _ in replicas})
    return "; ".join(f"{key.request_class}: {workers_text(_of(replicas, key))} at {key.site}" for key in keys) + "."


def _weighed(kind: str, obs: PlacementObservation) -> tuple[Alternative, ...]:
    return tuple(
        Alternative(
            f"{name}, {sum(mode.tp * n for (_, _, mode), n in own.replicas.items())} GPUs, "
            f"{own.attainment:.1%} in time",
            chosen=name == kind,
        )
        for name, own in obs.options.items()
    )


def _inputs(obs: PlacementObservation, config: PlacingConfig) -> dict[str, object]:
    return {
        "kind": config.kind,
        "goal": config.goal,
        "attainment": obs.attainment,
        "starved": list(obs.starved),
        "options": {name: own.attainment for name, own in obs.options.items()},
    }
