"""An experiment with its results: runs, bound, and what was taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.simulator.lab.bound import Bound
from core.simulator.lab.decomposition import Decomposition
from core.simulator.lab.measures import CALCULATED, Results


@dataclass(frozen=True, slots=True)
class Found:
    """The results of an experiment. `failed`: of runs that could not be done, what was wrong, by label."""

    results: Results
    failed: Mapping[str, str] = field(default_factory=dict)
    bound: Bound | None = None
    decomposition: Decomposition | None = None
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> Results:
        """Returns the results of runs, without the figures that no run has."""
        return {label: own for label, own in self.results.items() if label != CALCULATED}
