"""Controls that only look at a run: what of a fleet its services have."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from core.simulator.kernel.commands import OFF, SERVING, Answer, FleetView


@dataclass
class GpuCount:
    """The most GPUs in use at once, by site and type."""

    most: Counter[tuple[str, str]] = field(default_factory=Counter)
    name: str = "count"
    period_s: float = 1.0

    def step(self, view: FleetView) -> Answer:
        used: Counter[tuple[str, str]] = Counter()
        for slot in np.flatnonzero(view.state != OFF).tolist():
            spec = view.instances[slot]
            used[spec.site, spec.gpu] += spec.tp * spec.gpu_share
        self.most |= used
        return Answer()


@dataclass
class Serving:
    """The models that an instance serves, at each look."""

    models: list[set[str]] = field(default_factory=list)
    name: str = "serving"
    period_s: float = 1.0

    def step(self, view: FleetView) -> Answer:
        self.models.append({view.instances[slot].model for slot in np.flatnonzero(view.state == SERVING).tolist()})
        return Answer()
