"""Lets `core.predictors.carbon_scores` score the network over neighbouring grids, where PyTorch is installed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from core.predictors.carbon_features import Floats, Grid, Whole
from core.predictors.carbon_scores import QUANTILES, Made, Maker, Silent, stretches
from core.predictors.carbon_training import TooShort

from . import REMEDY, available

if TYPE_CHECKING:
    from .carbon_gru import CarbonGru


@dataclass(frozen=True, slots=True)
class _Learned:
    """A network and the seconds of CPU that it took, or why there is none."""

    network: CarbonGru | None
    why: str
    training_s: float


@dataclass
class GruMakers:
    """Forecasts of each of some grids by networks over all of them.

    A network is learned from what was known at an hour, once for all grids; the seconds that it took count for each.
    """

    grids: Mapping[str, Grid]
    relearn_days: int
    _kept: dict[int, _Learned] = field(default_factory=dict)

    def of(self, name: str) -> Maker:
        """Returns what forecasts one of the grids. It raises Silent where it cannot."""

        def make(grid: Grid, origins: Whole) -> Made:
            if not available():
                raise Silent(f"PyTorch is not installed: {REMEDY}")
            made, forecast_s, training_s = [], 0.0, 0.0
            for part in stretches(origins + grid.first_hour, self.relearn_days):
                learned = self._learned(int(part[0]))
                begun = time.process_time()
                made.append(self._said(learned, name, part))
                forecast_s += time.process_time() - begun
                training_s += learned.training_s
            return Made(np.concatenate(made, axis=1), forecast_s, training_s)

        return make

    def _learned(self, hour: int) -> _Learned:
        if hour not in self._kept:
            from .carbon_gru_training import learn

            past = {name: grid.before(hour - grid.first_hour) for name, grid in self.grids.items()}
            begun = time.process_time()
            try:
                network, why = learn({name: grid for name, grid in past.items() if grid.carbon.size}), ""
            except TooShort as reason:
                network, why = None, str(reason)
            self._kept[hour] = _Learned(network, why, time.process_time() - begun)
        return self._kept[hour]

    def _said(self, learned: _Learned, name: str, hours: Whole) -> Floats:
        if learned.network is None:
            raise Silent(learned.why)
        if name not in learned.network.about.grids:
            raise Silent(f"its past is too short for the network over {', '.join(learned.network.about.grids)}")
        return learned.network.forecasts(self.grids, hours, QUANTILES)[name]
