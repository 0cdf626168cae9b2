"""The parts of carrying out a want: what is due, what one look at the fleet found, and servers that stand ready."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from core.engine.overheads import Overheads, cold_start_s
from core.simulator.kernel.commands import FleetView, Move, Reshard, Start
from core.simulator.policies.config import Starting
from core.simulator.policies.node_occupancy import InstanceShape

Want = tuple[int, InstanceShape]  # (pool, kind)


class WarmServers:
    """The servers that stand ready for starts.

    One that is used is replaced in the background, in the time a new one takes.
    """

    def __init__(self, overheads: Overheads, starting: Starting) -> None:
        self._overheads, self._starting = overheads, starting
        self._back_s: dict[str, list[float]] = defaultdict(list)

    def ready_in_s(self, kind: InstanceShape, now_s: float) -> float:
        size, warm = self._starting.warm_pool, True
        if size is not None:
            away = self._back_s[kind.site] = [back_s for back_s in self._back_s[kind.site] if back_s > now_s]
            warm = len(away) < size
            if warm:
                steps = self._overheads.start
                away.append(now_s + steps.vm_s + steps.environment_s)
        cached = self._starting.weights_cached
        return cold_start_s(self._overheads, warm=warm, weights_cached=cached, model_name=kind.model)


@dataclass(slots=True, eq=False)
class Coming:
    """An instance that was asked for and that no view has shown yet. `replaces`: slots that go when it is up."""

    pool: int
    kind: InstanceShape
    node: int
    replaces: tuple[int, ...] = ()
    resharded: bool = False


@dataclass(slots=True)
class Round:
    """One look at the fleet: what is there, what is missing, and the commands so far."""

    view: FleetView
    standing: dict[Want, list[int]]
    missing: list[Want]
    surplus: dict[int, list[int]]  # pool -> slots
    starts: list[tuple[Coming, Start]] = field(default_factory=list)
    reshards: list[Reshard] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    drained: list[int] = field(default_factory=list)

    @property
    def acts(self) -> bool:
        return bool(self.starts or self.reshards or self.moves or self.drained)

    def name(self, slot: int) -> str:
        return self.view.instances[slot].name

    def drain(self, slot: int) -> None:
        self.drained.append(slot)
