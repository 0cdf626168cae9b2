"""What follows a change of keys."""

from __future__ import annotations

import logging

from django.db import transaction
from kombu.exceptions import OperationalError
from redis import RedisError

from scheduler import tasks

log = logging.getLogger(__name__)


def tell_gateways() -> None:
    """Has the workers publish the fleet anew once the change is stored; failing that, it goes with the next publish."""
    transaction.on_commit(_send)


def _send() -> None:
    try:
        tasks.publish.apply_async(expires=60, retry=False)
    except (OperationalError, RedisError, OSError) as error:
        log.warning("gateways are told of keys with the next publish only: %s", error)
