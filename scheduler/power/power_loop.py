"""The loop of servers: follows those that are switched, decides which are next, and asks their power ports.

No call goes out within a transaction. Each decision is one of the scale loop, of no service: servers are the fleet's.
What a port refuses is a decision too, and an alert (`telemetry.alerts.servers`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TypeVar

from django.db import transaction
from django.db.models import QuerySet

from core.controllers.fleet import servers
from core.ports import AdapterError, PowerState, ServerPower
from core.types import Effects, Loop, SwitchServer
from pools import database_locks, server_states, wire
from pools.database_locks import Lock
from pools.models import Instance, Node, PowerCycle, PowerPort
from pools.server_states import Phase
from scheduler import agents
from scheduler.control import decision_rows
from scheduler.control.apply import apply
from scheduler.json_values import to_json
from scheduler.models import Decision

from . import power_choice, server_view

log = logging.getLogger(__name__)

FORCED_AFTER = timedelta(minutes=5)  # that a machine has to end by itself
UNSEEN_OFF_AFTER = timedelta(minutes=7)  # that a server whose port cannot tell its state counts as on
MOST_CALLS = 16  # at a time

T = TypeVar("T")
Ports = Callable[[Node], ServerPower]


def look(now: datetime, ports: Ports = power_choice.power_of) -> None:
    """Takes one turn; cheap where no node has a power port."""
    if not Node.objects.exclude(power_port=PowerPort.NONE).exists() and not _open().exists():
        return
    with database_locks.held(Lock.SERVERS) as mine:
        if mine:
            _follow(now, ports)
            _decide(now, ports)


def _open() -> QuerySet[PowerCycle]:
    return PowerCycle.objects.filter(ready_at__isnull=True).select_related("node").order_by("node__name")


# -- what was asked for ------------------------------------------------------------------------------


def _follow(now: datetime, ports: Ports) -> None:
    """Notes what has come of each order, and gives again what was lost."""
    cycles = list(_open())
    if not cycles:
        return
    heard_s = {name: own.at_s for name, own in agents.states(agents.connect(), [c.node.name for c in cycles]).items()}
    nodes = {own.node.name: own.node for own in cycles}
    found = _calls(nodes, lambda power: power.state(), ports)
    again: dict[str, Callable[[ServerPower], None]] = {}
    for cycle in cycles:
        said = found[cycle.node.name]
        fault = str(said) if isinstance(said, AdapterError) else ""
        state: PowerState | None = None if isinstance(said, AdapterError) else said
        order = _advance(cycle, state, heard_s.get(cycle.node.name, 0.0), now)
        cycle.fault = "" if cycle.ready_at else fault[:300]
        cycle.save()
        if order is not None and not fault:
            again[cycle.node.name] = order
    _give(again, nodes, ports)
    _end_instances([own.node.name for own in cycles if own.off_at and not own.on_asked_at and not own.ready_at], now)


def _advance(
    cycle: PowerCycle, state: PowerState | None, heard_s: float, now: datetime
) -> Callable[[ServerPower], None] | None:
    """Moves a cycle on by what its port and its agent say. Returns the order that is to be given again."""
    if cycle.on_asked_at is not None:
        if heard_s > cycle.on_asked_at.timestamp():
            cycle.ready_at = now
        return _on if state == "off" and cycle.ready_at is None else None
    if state == "off":
        cycle.off_at = cycle.off_at or now
    elif state == "on" and cycle.off_at is None and not cycle.forced and now - cycle.off_asked_at >= FORCED_AFTER:
        cycle.forced = True
        log.warning("%s did not end in time: its power is cut", cycle.node.name)
        return _cut
    elif state == "on" and cycle.off_at is not None and heard_s > cycle.off_at.timestamp():
        cycle.on_asked_at = cycle.ready_at = now  # somebody else switched it on
    return None


def _on(power: ServerPower) -> None:
    power.on()


def _off(power: ServerPower) -> None:
    power.off()


def _cut(power: ServerPower) -> None:
    power.off(force=True)


def _end_instances(off: Iterable[str], now: datetime) -> None:
    """Ends instances that were to drain on servers that are off: nothing runs there."""
    nothing = {name: wire.AgentState(name, "", now.timestamp(), None, []) for name in off}
    if nothing:
        with transaction.atomic():
            apply.lock()
            apply.finish_drains(nothing, now)


# -- what is next ------------------------------------------------------------------------------------


def _decide(now: datetime, ports: Ports) -> None:
    states = server_states.of()
    view = server_view.read(states, agents.heard(agents.connect(), now), now)
    _, effects = servers.step(None, view.observation, view.config)
    orders = {own.server: own.on for own in effects.commands if isinstance(own, SwitchServer)}
    nodes = {own.name: own for own in Node.objects.filter(name__in=orders)}
    made: dict[str, Callable[[ServerPower], None]] = {}
    for name, on in orders.items():
        if on and states[name].phase is Phase.GOES_OFF and not _must_be_off(states[name], now):
            continue  # a machine that ends does not hear that it is to boot
        changed = _ask_on(nodes[name], now) if on else _ask_off(nodes[name], now)
        if changed:
            made[name] = _on if on else _off
    if not made:
        return
    _put_on_record(effects, made, now)
    for name, fault in _give(made, nodes, ports).items():
        _refused(nodes[name], orders[name], fault, now)


def _must_be_off(state: server_states.ServerState, now: datetime) -> bool:
    """Says whether a server that goes off must be off by now, though its port has not said so."""
    return state.since is not None and not state.fault and now - state.since >= UNSEEN_OFF_AFTER


def _ask_on(node: Node, now: datetime) -> bool:
    rows = PowerCycle.objects.filter(node=node, ready_at__isnull=True, on_asked_at__isnull=True)
    return rows.update(on_asked_at=now) == 1


def _ask_off(node: Node, now: datetime) -> bool:
    """Begins a cycle, unless an instance or a person was faster."""
    with transaction.atomic():
        apply.lock()
        live = Instance.objects.filter(node=node).exclude(state=Instance.State.STOPPED)
        may = Node.objects.filter(pk=node.pk, schedulable=True).exclude(power_port=PowerPort.NONE).exists()
        if not may or live.exists() or PowerCycle.objects.filter(node=node, ready_at__isnull=True).exists():
            return False
        PowerCycle.objects.create(node=node, off_asked_at=now)
    return True


def _refused(node: Node, on: bool, fault: str, now: datetime) -> None:
    """Puts an order that could not be given on record. A server that is not switched off stays on."""
    rows = PowerCycle.objects.filter(node=node, ready_at__isnull=True)
    if on:
        rows.update(fault=fault[:300])
    else:
        rows.update(fault=fault[:300], off_asked_at=now, on_asked_at=now, ready_at=now)
    what = "on: it is asked again" if on else "off: it stays on"
    Decision.objects.create(
        kind=Loop.SCALE.value,
        at=now,
        reason=decision_rows.FAILED,
        summary=f"{node.name} could not be switched {what}. {fault}"[:500],
        inputs={"server": node.name, "power_port": node.power_port, "on": on},
    )


def _put_on_record(effects: Effects, made: Iterable[str], now: datetime) -> None:
    commands = [own for own in effects.commands if isinstance(own, SwitchServer) and own.server in set(made)]
    Decision.objects.create(
        kind=Loop.SCALE.value,
        at=now,
        reason=effects.rationale.reason.value,
        summary=effects.rationale.summary[:500],
        inputs=to_json(effects.rationale.inputs),
        commands=to_json(tuple(commands)),
    )


# -- calls -------------------------------------------------------------------------------------------


def _give(
    orders: Mapping[str, Callable[[ServerPower], None]], nodes: Mapping[str, Node], ports: Ports
) -> dict[str, str]:
    """Gives orders. Returns what failed, by node, and why."""
    found: dict[str, str] = {}
    with ThreadPoolExecutor(MOST_CALLS) as pool:
        asked = {name: pool.submit(_called, nodes[name], order, ports) for name, order in orders.items()}
    for name, task in asked.items():
        said = task.result()
        if isinstance(said, AdapterError):
            log.warning("%s could not be switched: %s", name, said)
            found[name] = str(said)
    return found


def _calls(
    nodes: Mapping[str, Node], ask: Callable[[ServerPower], PowerState | None], ports: Ports
) -> dict[str, PowerState | AdapterError | None]:
    with ThreadPoolExecutor(MOST_CALLS) as pool:
        asked = {name: pool.submit(_called, node, ask, ports) for name, node in nodes.items()}
    return {name: task.result() for name, task in asked.items()}


def _called(node: Node, ask: Callable[[ServerPower], T], ports: Ports) -> T | AdapterError:
    try:
        return ask(ports(node))
    except AdapterError as error:
        return error
