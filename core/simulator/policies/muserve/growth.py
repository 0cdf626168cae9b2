"""Gives a model whose clock is at its top, and wanted higher, another replica on GPUs that have none.

The step that decides it is that of live services (`core.controllers.fleet.placement`). Replicas that stand stay as they
are, parts of devices included.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from core.controllers.fleet import placement
from core.controllers.fleet.placement import PlacementObservation, PlacementOption, PlacementState, PlacingConfig
from core.engine.overheads import cold_start_s
from core.observations import asking
from core.simulator.kernel.commands import Decision, FleetView, Start
from core.simulator.kernel.simulated import Scheduling
from core.simulator.policies.muserve.device_placement import Placer
from core.simulator.policies.muserve.replicas import Replica, sized
from core.types import Mode, Reason


class Growth:
    """The placement after its first moment. `options`: what it was chosen from; `rules`: of each service's queues."""

    def __init__(
        self,
        placer: Placer,
        options: Mapping[str, PlacementOption],
        replicas: Sequence[Replica],
        config: PlacingConfig,
        rules: Sequence[Scheduling],
    ) -> None:
        self._placer, self._options, self._config, self._rules = placer, options, config, rules
        self._replicas = list(replicas)
        self._state: PlacementState | None = PlacementState(config.kind)

    def step(self, view: FleetView, starved: Collection[int]) -> tuple[Replica | None, tuple[Start, ...], Decision]:
        """Returns the replica that starts for one of the services, None where none does, the command, and why."""
        names = [service.name for service in self._placer.world.services]
        room = {names[n]: self._room(n) for n in starved}
        present = self._placer.counted(self._replicas)
        short = tuple(sorted(room))
        obs = PlacementObservation(view.now_s, self._options, present, starved=short, room=room)
        self._state, effects = asking.step(placement.step, self._state, obs, self._config)
        reason, text = effects.rationale.reason, effects.rationale.summary
        if reason is not Reason.CONGESTED:
            return None, (), Decision(view.now_s, "placement", str(reason), text, 0)
        (grown,) = effects.decisions
        key = grown.pool
        before = {mode: n for (site, name, mode), n in present.items() if (site, name) == (key.site, key.request_class)}
        (mode,) = Counter(grown.workers) - Counter(before)
        replica = self._new(names.index(key.request_class), key.site, mode)
        self._replicas.append(replica)
        ready_in_s = cold_start_s(self._placer.world.overheads, model_name=replica.spec.model)
        start = Start(replica.spec, key.request_class, ready_in_s)
        return replica, (start,), Decision(view.now_s, "placement", str(reason), text, 1)

    def _room(self, n: int) -> tuple[tuple[str, Mode], ...]:
        mode = self._placer.fewest(n)
        had = sum(replica.spec.gpu_share * replica.spec.tp for replica in self._replicas if replica.slot.service == n)
        most = self._placer.needs[n].share.max_gpus
        if most is not None and had + mode.tp > most:
            return ()
        sites = {site for (site, _), free in self._free().items() if len(free) >= mode.tp}
        return tuple((site, mode) for site in sorted(sites) if self._placer.offers(n, site, mode))

    def _free(self) -> dict[tuple[str, int], list[str]]:
        """Returns the devices of each node that no replica has."""
        taken = {device for replica in self._replicas for device in replica.slot.devices}
        found: dict[tuple[str, int], list[str]] = defaultdict(list)
        for device, node in self._placer.node.items():
            if device not in taken:
                found[node].append(device)
        return found

    def _new(self, n: int, site: str, mode: Mode) -> Replica:
        """Makes a replica on the fullest node that has room, with all of its devices."""
        fitting = [free for (where, _), free in self._free().items() if where == site and len(free) >= mode.tp]
        devices = min(fitting, key=len)[: mode.tp]
        found = sized([self._placer.slot(n, devices)], self._placer.needs, self._placer.device_bytes)
        assert found is not None  # a replica on as few devices as hold it, with nothing beside it
        own = 1 + sum(replica.slot.service == n for replica in self._replicas)
        service = self._placer.world.services[n].name
        spec = replace(found[0].spec, name=f"{service}-{own}", scheduling=self._rules[n])
        return Replica(found[0].slot, spec, self._placer.needs[n].rps / own)
