"""Says what it costs a service to sleep and to wake, for every world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from core.controllers.fleet.sleep import Place, Sleeper
from core.engine.engine_model import gpu
from core.engine.overheads import Overheads, cold_start_s, wake_s
from core.types import Mode

OFF, STOP, LEVEL = "off", "stop", "level"  # the knob `sleep`
_WEIGHTS_IN_MEMORY = 1  # vLLM's sleep level


def sleeper(
    name: str,
    model: str,
    kind: str,
    workers: Mapping[tuple[str, Mode], int],
    overheads: Overheads,
    *,
    awake: bool,
    open_requests: int | None,
    quiet_s: float,
    waited_s: float,
    idle_s: float | None,
    at_top: bool,
    measured_s: Mapping[Mode, float] = MappingProxyType({}),
) -> Sleeper:
    """Returns a service as the controller sees it.

    Asleep, its GPUs draw what empty ones do; while it wakes, what loaded ones do at the top clock, as simulated nodes
    have it.

    Args:
        model: As the engine model knows it.
        kind: `stop`: a start, with the weights on the machine's disk; `level`: from vLLM's level 1.
        workers: Its instances while it is awake, by (site, mode).
        measured_s: Of its modes, seconds that waking took where that was measured; the others are as published.
        at_top: Awake and idle, its GPUs are at the top clock; else a clock rule has them at their lowest.

    Raises:
        UnknownConfiguration: The model or a GPU type is not known.
    """
    gpus: Counter[Place] = Counter()
    longest_s = wake_j = saved_w = 0.0
    for (site, mode), count in workers.items():
        own, here = gpu(mode.gpu), count * mode.tp
        gpus[site, mode.gpu] += here
        took_s = measured_s.get(mode, 0.0) or waking_s(kind, overheads, model, mode.tp)
        longest_s = max(longest_s, took_s)
        wake_j += here * took_s * own.loaded_idle_w(own.f_max)
        saved_w += here * (own.loaded_idle_w(own.f_max if at_top else own.f_min) - own.idle_w)
    measured = bool(workers) and all(mode in measured_s for _, mode in workers)
    return Sleeper(name, awake, open_requests, quiet_s, waited_s, longest_s, wake_j, saved_w, gpus, idle_s, measured)


def waking_s(kind: str, overheads: Overheads, model: str, tp: int) -> float:
    """Returns the seconds from the command to the first iteration of an engine. Raises UnknownConfiguration."""
    if kind == LEVEL:
        return wake_s(overheads, _WEIGHTS_IN_MEMORY, model, tp)
    return cold_start_s(overheads, model_name=model)
