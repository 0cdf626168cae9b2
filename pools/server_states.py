"""Says of each server whether it is on, goes off, is off by plan, or boots, and how long it takes to boot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.conf import settings
from django.db.models import F, Q, QuerySet

from pools.models import Node, PowerCycle

ASSUMED_BOOT_S = 600.0  # of a server with GPUs, its memory test included
LATE = 3.0  # times that a server may take to boot before something must be wrong
_MEASURED = 10  # newest boots that count


class Phase(StrEnum):
    """The state of a server, as its power cycle has it."""

    ON = "on"
    GOES_OFF = "goes off"
    OFF = "off"
    BOOTS = "boots"


@dataclass(frozen=True, slots=True)
class ServerState:
    """A server now.

    Attributes:
        pk: Of the node's row.
        since: When it came into its phase; None: it has not been off.
        boot_s: From being switched on until its agent reports, in seconds.
        boot_source: measured | declared | assumed.
        fault: Why the newest call to its power port failed; empty: it did not.
    """

    pk: int
    node: str
    phase: Phase
    since: datetime | None
    boot_s: float
    boot_source: str
    fault: str = ""

    @property
    def by_plan(self) -> bool:
        """Says whether a plan, and no fault, is why its agent is silent."""
        return self.phase is not Phase.ON

    def late(self, now: datetime) -> bool:
        """Says whether it was asked to boot and should have been there long ago."""
        return self.phase is Phase.BOOTS and self._passed_s(now) > LATE * self.boot_s

    def ready_in_s(self, now: datetime) -> float:
        """Returns the time until an engine can start on it."""
        if self.phase is Phase.ON:
            return 0.0
        return max(0.0, self.boot_s - (self._passed_s(now) if self.phase is Phase.BOOTS else 0.0))

    def _passed_s(self, now: datetime) -> float:
        return 0.0 if self.since is None else (now - self.since).total_seconds()

    def words(self, now: datetime) -> str:
        """Says for people what it does; empty: it is on."""
        if self.phase is Phase.ON:
            return ""
        if self.phase is Phase.BOOTS:
            return "late to boot" if self.late(now) else f"boots, ready in {_minutes(self.ready_in_s(now))}"
        what = "off" if self.phase is Phase.OFF else "going off"
        return f"{what} (by plan), boots in {_minutes(self.boot_s)}"


def of(nodes: QuerySet[Node] | None = None) -> dict[str, ServerState]:
    """Returns the states of nodes that can be switched, or were off when their port was taken from them, by name."""
    rows = Node.objects.all() if nodes is None else nodes
    open_cycles = {own.node_id: own for own in PowerCycle.objects.filter(ready_at__isnull=True)}
    found = rows.filter(~Q(power_port="none") | Q(pk__in=open_cycles)).order_by("name")
    boots_s = _boots_s([own.pk for own in found])
    return {own.name: _state(own, open_cycles.get(own.pk), boots_s.get(own.pk)) for own in found}


def switched() -> dict[str, ServerState]:
    """Returns the states of servers that are off, go off or boot; one query where there are none."""
    open_cycles = list(PowerCycle.objects.filter(ready_at__isnull=True).values_list("node", flat=True))
    return of(Node.objects.filter(pk__in=open_cycles)) if open_cycles else {}


def usable(states: Mapping[str, ServerState], now: datetime) -> set[str]:
    """Returns the servers that are off by plan or boot, and that an instance may be planned on all the same."""
    return {name for name, own in states.items() if own.by_plan and not own.late(now) and not own.fault}


def _state(node: Node, cycle: PowerCycle | None, measured_s: float | None) -> ServerState:
    assumed_s = ASSUMED_BOOT_S / (settings.GREENSERVE_TRANSITION_SPEEDUP if node.simulated else 1.0)
    boot_s, source = assumed_s, "assumed"
    if measured_s is not None:
        boot_s, source = measured_s, "measured"
    elif node.boot_s is not None:
        boot_s, source = node.boot_s, "declared"
    if cycle is None:
        return ServerState(node.pk, node.name, Phase.ON, None, boot_s, source)
    phase, since = Phase.GOES_OFF, cycle.off_asked_at
    if cycle.on_asked_at is not None:
        phase, since = Phase.BOOTS, cycle.on_asked_at
    elif cycle.off_at is not None:
        phase, since = Phase.OFF, cycle.off_at
    return ServerState(node.pk, node.name, phase, since, boot_s, source, cycle.fault)


def _boots_s(nodes: Collection[int]) -> dict[int, float]:
    """Returns the mean of the newest boots of each node. A server that never went off did not boot."""
    booted = PowerCycle.objects.filter(node__in=nodes, ready_at__isnull=False, off_at__isnull=False)
    rows = booted.order_by("-ready_at").values_list("node", F("ready_at") - F("on_asked_at"))
    found: defaultdict[int, list[float]] = defaultdict(list)
    for node, took in rows[: _MEASURED * max(1, len(nodes))]:
        if len(found[node]) < _MEASURED:
            found[node].append(max(1.0, took.total_seconds()))
    return {node: sum(took) / len(took) for node, took in found.items() if took}


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90.0 else f"{seconds / 60.0:.0f} min"
