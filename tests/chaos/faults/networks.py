"""Networks that drop what two kinds of processes send each other, without a word.

Redis and PostgreSQL of the demo listen on unix sockets: what a cut to them would do, freezing them does (nobody
answers, and nobody refuses).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.chaos import machine
from tests.chaos.fault import Fault
from tests.chaos.stand import Stand, tree

LASTS_S = 20.0
Ends = Callable[[Stand], tuple[Sequence[int], Sequence[int]]]  # processes, and ports of those that they reach no more


def _engine_ports(stand: Stand, node: str) -> list[int]:
    return [int(i["url"].rpartition(":")[2]) for i in stand.ask_node(node, "/instances") if i.get("url")]


def _gateway_and_a_node(stand: Stand) -> tuple[Sequence[int], Sequence[int]]:
    node = sorted(stand.serving())[0]
    return stand.pids("gateway.1", "gateway.2"), _engine_ports(stand, node)


def _agent_and_its_node(stand: Stand) -> tuple[Sequence[int], Sequence[int]]:
    node = sorted(stand.serving())[0]
    stand.unheld.append(node)
    return stand.pids(f"node.{node}"), [stand.node_port(node), *_engine_ports(stand, node)]


def _gateway_and_web(stand: Stand) -> tuple[Sequence[int], Sequence[int]]:
    return stand.pids("gateway.1", "gateway.2"), [stand.product.web_port]


def _one_gateway_and_all_engines(stand: Stand) -> tuple[Sequence[int], Sequence[int]]:
    ports = [port for node in stand.serving() for port in _engine_ports(stand, node)]
    return tree(stand.pid("gateway.1")), ports


def _cut(name: str, component: str, ends: Ends, promise: str, clocks: bool = False) -> Fault:
    return Fault(
        name=f"{name} cut for {LASTS_S:.0f} s",
        component=component,
        kind="cut",
        promise=promise,
        part=5,
        begin=lambda stand: machine.cut(*ends(stand)),
        end=lambda _: machine.mend(),
        lasts_s=LASTS_S,
        clocks=clocks,
    )


FAULTS = (
    _cut("gateways and a node", "network", _gateway_and_a_node, "Requests go to the engines of other nodes."),
    _cut(
        "an agent and its node",
        "network",
        _agent_and_its_node,
        "Engines serve on; the node's clocks are back at their default within 10 s; no joule is lost.",
        clocks=True,
    ),
    _cut(
        "a gateway and all engines",
        "network",
        _one_gateway_and_all_engines,
        "What the gateway cannot serve is asked for again and answered by the other.",
    ),
    _cut("gateways and the dashboard", "gateway", _gateway_and_web, "Clients of models notice nothing."),
)
