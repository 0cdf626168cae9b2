"""Agents, simulated nodes and their engines, and leases of clocks."""

from __future__ import annotations

import json
import urllib.request

from tests.chaos.fault import SERVES, Fault
from tests.chaos.stand import Stand

CLOCKS = "The clocks of the nodes are back at their default within 10 s; engines serve on; no joule is lost."
LEASE_S = 4.0


def serving_node(stand: Stand) -> str:
    """Returns a node with an instance that is ready; of several the first by name."""
    return sorted(stand.serving())[0]


def _freeze_agents(stand: Stand) -> None:
    nodes = stand.nodes()
    stand.freeze(*(f"node.{node}" for node in nodes))
    stand.unheld += nodes


def _freeze_an_agent(stand: Stand) -> None:
    node = serving_node(stand)
    stand.freeze(f"node.{node}")
    stand.unheld.append(node)


def _hold_clocks_of_nobody(stand: Stand) -> None:
    """Locks clocks of a node under a lease that nobody renews, as an agent that has just died leaves them."""
    node = sorted(set(stand.nodes()) - set(stand.serving()))[0]
    gpus = stand.ask_node(node, "/gpus")
    order = {"uuids": [gpu["uuid"] for gpu in gpus], "mhz": gpus[0]["min_mhz"], "lease_s": LEASE_S}
    _post(stand, node, "/gpus/clock", order)
    stand.unheld.append(node)


def _lie(stand: Stand, time: float, power: float) -> None:
    """Engines of a node take and draw other than the engine model says, and nothing tells."""
    stand.kept["liar"] = node = serving_node(stand)
    _post(stand, node, "/truth", {"time": time, "power": power})


def _tell_the_truth(stand: Stand) -> None:
    _post(stand, stand.kept["liar"], "/truth", {"time": 1.0, "power": 1.0})


def _post(stand: Stand, node: str, path: str, body: object) -> None:
    url = f"http://127.0.0.1:{stand.node_port(node)}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=5).close()


FAULTS = (
    Fault(
        name="agent killed",
        component="agent",
        kind="killed",
        promise="It is back within 10 s, its engines serve on meanwhile, and no joule is lost.",
        part=1,
        begin=lambda stand: stand.kill(f"node.{serving_node(stand)}"),
    ),
    Fault(
        name="all agents killed at once",
        component="agent",
        kind="killed",
        promise="They are back within 10 s, all engines serve on meanwhile, and no joule is lost.",
        part=1,
        begin=lambda stand: stand.kill(*(f"node.{node}" for node in stand.nodes())),
    ),
    Fault(
        name="an agent frozen for 20 s",
        component="agent",
        kind="frozen",
        promise=CLOCKS,
        part=1,
        begin=_freeze_an_agent,
        end=Stand.thaw,
        lasts_s=20.0,
        clocks=True,
    ),
    Fault(
        name="all agents frozen for 24 s",
        component="agent",
        kind="frozen",
        promise=CLOCKS,
        part=1,
        begin=_freeze_agents,
        end=Stand.thaw,
        lasts_s=24.0,
        clocks=True,
    ),
    Fault(
        name="a clock lease that nobody renews",
        component="lease",
        kind="lapsed",
        promise="The clocks are back at their default when the lease is over, and within 10 s.",
        part=1,
        begin=_hold_clocks_of_nobody,
        lasts_s=8.0,
        clocks=True,
    ),
    Fault(
        name="node with its engines killed",
        component="engine",
        kind="killed",
        promise="Requests go to other engines or wait for new ones; what broke off is asked for again.",
        part=2,
        begin=lambda stand: stand.kill(f"simnode.{serving_node(stand)}"),
        lasts_s=20.0,
    ),
    Fault(
        name="all engines of a model hung for 30 s",
        component="engine",
        kind="frozen",
        promise="Requests wait as long as their TTFT objective, then are asked to come again; later ones are served.",
        part=2,
        begin=lambda stand: stand.freeze(*(f"simnode.{node}" for node in stand.serving())),
        end=Stand.thaw,
        lasts_s=30.0,
        stops=True,
        because="no engine is left that could serve: clients that ask then, and then again, are refused",
    ),
    Fault(
        name="engines 2.5 times as slow and hungry as they say",
        component="engine",
        kind="lying",
        promise=SERVES,
        part=2,
        begin=lambda stand: _lie(stand, 2.5, 2.5),
        end=_tell_the_truth,
        lasts_s=30.0,
    ),
    Fault(
        name="engines 2.5 times as fast and frugal as they say",
        component="engine",
        kind="lying",
        promise=SERVES,
        part=2,
        begin=lambda stand: _lie(stand, 0.4, 0.4),
        end=_tell_the_truth,
        lasts_s=30.0,
    ),
)
