"""The check beside the meter: a GPU's energy counter against its integrated power."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from core.ports import GpuReading

WINDOW_S = 60.0  # published disagreements reach tens of percent on shorter ones
TOLERATED_SHARE = 0.15
_LONGEST_GAP_S = 5.0  # between readings: over a longer one power is not known


@dataclass(slots=True)
class _Window:
    began_s: float
    began_j: float
    integral_j: float
    last_s: float
    last_w: float
    last_j: float


class EnergyCheck:
    """Compares both over windows of `window_s` and keeps what it found until the next one ends.

    Counter increments are posted whatever this says: it shows an operator that a sensor is not to be trusted.
    """

    def __init__(self, window_s: float = WINDOW_S, tolerated_share: float = TOLERATED_SHARE) -> None:
        self._window_s = window_s
        self._tolerated_share = tolerated_share
        self._windows: dict[str, _Window] = {}
        self._found: dict[str, str] = {}

    def add(self, readings: Iterable[GpuReading]) -> None:
        for reading in readings:
            if reading.energy_j is None or reading.power_w is None:
                self._windows.pop(reading.uuid, None)
            else:
                self._add(reading.uuid, reading.at_s, reading.energy_j, reading.power_w)

    def notices(self) -> tuple[str, ...]:
        """Returns the findings of each GPU's last window, in words."""
        return tuple(self._found.values())

    def _add(self, uuid: str, at_s: float, energy_j: float, power_w: float) -> None:
        window = self._windows.get(uuid)
        if window is not None and energy_j < window.last_j:
            self._found[uuid] = f"{uuid}: the energy counter went back from {window.last_j:.0f} to {energy_j:.0f} J"
            window = None
        if window is None or not 0.0 <= at_s - window.last_s <= _LONGEST_GAP_S:
            self._windows[uuid] = _Window(at_s, energy_j, 0.0, at_s, power_w, energy_j)
            return
        window.integral_j += (window.last_w + power_w) / 2.0 * (at_s - window.last_s)
        window.last_s, window.last_w, window.last_j = at_s, power_w, energy_j
        if at_s - window.began_s >= self._window_s:
            self._compare(uuid, window)
            self._windows[uuid] = _Window(at_s, energy_j, 0.0, at_s, power_w, energy_j)

    def _compare(self, uuid: str, window: _Window) -> None:
        counted_j, integral_j = window.last_j - window.began_j, window.integral_j
        apart = abs(counted_j - integral_j) / max(counted_j, integral_j, 1.0)
        if apart > self._tolerated_share:
            self._found[uuid] = (
                f"{uuid}: in {window.last_s - window.began_s:.0f} s the energy counter says {counted_j:.0f} J and "
                f"integrated power {integral_j:.0f} J, {apart:.0%} apart"
            )
        else:
            self._found.pop(uuid, None)
