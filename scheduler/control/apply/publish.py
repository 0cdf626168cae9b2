"""Tells the agents what their nodes are to run, and the gateways what there is. Writes Redis only."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime

import redis
from celery import current_app
from django.conf import settings
from kombu.exceptions import OperationalError

from pools import engine_knowledge, wire
from pools.registration import authority
from scheduler.control.apply import message_writer
from scheduler.control.apply.desired_messages import desired_nodes
from scheduler.control.apply.fleet_messages import fleet_snapshot

log = logging.getLogger(__name__)

NUDGE_EXPIRES_S = 10


def publish(client: redis.Redis, now: datetime) -> None:
    """Writes what has changed of the nodes' desired states and of the fleet, and announces the latter."""
    engine_knowledge.refresh()
    signer = authority.snapshot_signer(settings.GREENSERVE_SECRETS_DIR)
    message_writer.write(client, lambda version: (fleet_snapshot(now, version), desired_nodes(now, version)), signer)


def nudge(nodes: Iterable[str], decision_id: int | None = None) -> None:
    """Wakes the agents at once, each through the keys of its own queue. Only a hint: they look each second anyway."""
    for node in sorted(nodes):
        own = {"global_keyprefix": wire.celery_prefix(node)}
        try:
            with current_app.connection_for_write(transport_options=own) as connection:
                current_app.send_task(
                    "pools.agent.tasks.reconcile",
                    kwargs={"decision_id": decision_id},
                    queue=wire.node_queue(node),
                    expires=NUDGE_EXPIRES_S,
                    retry=False,
                    connection=connection,
                )
        except OperationalError as error:
            log.warning("node %s was not nudged: %s", node, error)
