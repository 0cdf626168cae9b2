"""A node's host energy, put together: what its meters say, and the rest of what its supplies show."""

from __future__ import annotations

from collections.abc import Sequence

from core.ports import AdapterError, GpuReading, HostMeter, HostReading

REST = "rest of the node"
RECENT_S = 60.0
TOLERATED_SHARE = 0.05  # by which GPUs and processors may show more than the node's supplies


class HostEnergy:
    """Reads all meters of a host. A meter at the node's supplies has GPUs and processors in it: they are taken off.

    The rest is `node - GPUs - other domains`, each counted since the first reading. It never falls, since the clocks of
    the meters differ by a second or so: what they show too little now they show later. It is missing as long as a part
    that was there before does not tell its energy.
    """

    def __init__(self, meters: Sequence[HostMeter], lacks: Sequence[str] = ()) -> None:
        """Takes as `lacks` what an operator should know of meters that there are not."""
        self._meters = tuple(meters)
        self._lacks = tuple(lacks)
        self._newest_s: dict[str, float] = {}  # by domain: what was given already
        self._last: dict[str, HostReading] = {}  # by domain, as given
        self._rest = _Rest()
        self.errors: list[str] = []  # of the last reading

    def read(self, gpus: Sequence[GpuReading]) -> tuple[HostReading, ...]:
        """Returns what is new since the last call. Raises nothing: what went wrong is in `errors`."""
        self.errors = []
        found: list[HostReading] = []
        for meter in self._meters:
            try:
                found += meter.read()
            except AdapterError as error:
                self.errors.append(f"cannot read the host's energy: {error}")
        fresh = [reading for reading in found if self._is_new(reading)]
        self._newest_s.update({reading.domain: reading.at_s for reading in fresh})
        parts = {gpu.uuid: gpu.energy_j for gpu in gpus}
        parts |= {reading.domain: reading.energy_j for reading in found if not reading.whole_node}
        self._rest.count(parts)
        given = [reading for reading in fresh if not reading.whole_node]
        given += [rest for reading in fresh if reading.whole_node and (rest := self._rest.of(reading)) is not None]
        self._last.update({reading.domain: reading for reading in given})
        return tuple(given)

    def _is_new(self, reading: HostReading) -> bool:
        """One that is older by more than meters take between two readings is new too: the clock was set back."""
        newest_s = self._newest_s.get(reading.domain, 0.0)
        return reading.at_s > newest_s or reading.at_s < newest_s - RECENT_S

    def recent(self, now_s: float) -> tuple[HostReading, ...]:
        """Returns each domain's last reading, of those that were read within the last minute before `now_s` (Unix)."""
        return tuple(reading for reading in self._last.values() if now_s - reading.at_s < RECENT_S)

    def notices(self) -> tuple[str, ...]:
        found = [notice for meter in self._meters for notice in meter.notices()]
        return (*self._lacks, *found, *self._rest.notices())

    def close(self) -> None:
        for meter in self._meters:
            meter.close()


class _Rest:
    def __init__(self) -> None:
        self._last: dict[str, float] = {}  # the parts' counters
        self._silent: tuple[str, ...] = ()
        self._parts_j = 0.0
        self._since: tuple[float, float] | None = None  # the node's counter and the parts' sum at the first reading
        self._node_j = 0.0
        self._rest_j = 0.0
        self._over_j = 0.0  # of the parts, more than the node has

    def count(self, parts: dict[str, float | None]) -> None:
        known = {name: energy_j for name, energy_j in parts.items() if energy_j is not None}
        for name, energy_j in known.items():
            before_j = self._last.get(name, energy_j)
            self._parts_j += energy_j if energy_j < before_j else energy_j - before_j  # a reset: what it counted since
        self._last |= known
        self._silent = tuple(sorted((self._last.keys() | parts.keys()) - known.keys()))

    def of(self, node: HostReading) -> HostReading | None:
        if self._silent or not self._last or node.energy_j is None:
            return None
        if self._since is None or node.energy_j < self._node_j:  # the first one, or one after a gap
            self._since, self._rest_j = (node.energy_j, self._parts_j), 0.0
        self._node_j = node.energy_j
        rest_j = (node.energy_j - self._since[0]) - (self._parts_j - self._since[1])
        self._over_j = max(0.0, self._rest_j - rest_j)
        self._rest_j = max(self._rest_j, rest_j)
        return HostReading(REST, node.method, node.at_s, self._rest_j)

    def notices(self) -> tuple[str, ...]:
        if self._silent:
            return (
                f"the rest of the node is not known while these do not tell their energy: {', '.join(self._silent)}",
            )
        if self._since is not None and self._over_j > TOLERATED_SHARE * (self._node_j - self._since[0]) > 0.0:
            return (
                f"GPUs and processors show {self._over_j:.0f} J more than the baseboard controller has of the node",
            )
        return ()
