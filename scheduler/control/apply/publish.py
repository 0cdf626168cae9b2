"""Tells the agents what their nodes are to run, and the gateways what there is. Writes Redis only."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from datetime import datetime

import redis
from celery import current_app
from kombu.exceptions import OperationalError

from pools import wire
from scheduler.control.apply.desired_messages import desired_nodes
from scheduler.control.apply.fleet_messages import fleet_snapshot

log = logging.getLogger(__name__)

NUDGE_EXPIRES_S = 10


def publish(client: redis.Redis, now: datetime) -> None:
    """Writes every node's desired state and the fleet snapshot, and announces the latter."""
    version = time.time_ns() // 1_000_000  # grows from publishing to publishing, restarts included
    fleet = fleet_snapshot(now, version)
    with client.pipeline(transaction=True) as pipe:
        for desired in desired_nodes(now, version):
            pipe.set(wire.desired_key(desired.node), wire.encode(desired))
        data = wire.encode(fleet)
        pipe.set(wire.FLEET_KEY, data)
        pipe.publish(wire.FLEET_CHANNEL, data)
        pipe.execute()


def nudge(nodes: Iterable[str], decision_id: int | None = None) -> None:
    """Wakes the agents at once. Only a hint: they read their desired state each second anyway."""
    for node in sorted(nodes):
        try:
            current_app.send_task(
                "pools.agent.tasks.reconcile",
                kwargs={"decision_id": decision_id},
                queue=wire.node_queue(node),
                expires=NUDGE_EXPIRES_S,
                retry=False,
            )
        except OperationalError as error:
            log.warning("node %s was not nudged: %s", node, error)
