"""The source of alerts on servers that are not switched as they are to be: what has gone wrong, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from pools import server_states
from pools.models import PowerCycle
from pools.server_states import Phase, ServerState

from .alert_state_machine import Reading
from .sources import Rules, Source

REFUSED_FOR = timedelta(minutes=20)  # longer than it is left alone (`scheduler.power`)


def _servers(now: datetime, rules: Rules) -> Iterator[Reading]:
    """Yields a reading for each server that can be switched, or is off."""
    # An order to switch off that could not be given ends its cycle at once.
    refused = PowerCycle.objects.filter(ready_at__gte=now - REFUSED_FOR, off_at__isnull=True).exclude(fault="")
    faults = dict(refused.order_by("ready_at").values_list("node__name", "fault"))
    for name, own in server_states.of().items():
        words, step = _wrong(own, faults.get(name, ""), now)
        yield Reading(
            "server_not_switched", name, float(bool(words)), words or f"Server {name} is as it is to be", step=step
        )


def _wrong(own: ServerState, refused: str, now: datetime) -> tuple[str, str]:
    """Returns what is wrong with a server, and what to do; empty: nothing is."""
    name = own.node
    if own.late(now):
        words = f"Server {name} was to boot within {own.boot_s:.0f} s ({own.boot_source}), and its agent is silent"
        step = "Look at its console: does it have power, does it boot, does greenserve-agent start? Else cut its power"
        return f"{words}. {own.fault}".removesuffix(". "), step
    if own.fault:
        return f"Server {name} cannot be switched: {own.fault}", ""
    if refused and own.phase is Phase.ON:
        return f"Server {name} could not be switched off, and stays on: {refused}", ""
    return "", ""


SERVERS = Source(("server_not_switched",), _servers)
