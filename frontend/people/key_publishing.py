"""Sends a change of keys to the gateways."""

from __future__ import annotations

import logging

from django.db import transaction
from kombu.exceptions import OperationalError
from redis import RedisError

from scheduler import tasks

log = logging.getLogger(__name__)


def publish_to_gateways() -> None:
    """Asks the workers to publish the fleet once the change is stored; if that fails, the next publish has it."""
    transaction.on_commit(_send)


def _send() -> None:
    try:
        tasks.publish.apply_async(expires=60, retry=False)
    except (OperationalError, RedisError, OSError) as error:
        log.warning("gateways get the change of keys only with the next publish: %s", error)
