"""GPU types that operators entered, made known to the engine model of this process.

Processes with the database read them here; gateways, agents and simulated nodes get them with their messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse

from core.engine import gpu_types
from pools.models import GpuType

logger = logging.getLogger(__name__)

EVERY_S = 1.0
_read_mono_s = float("-inf")


def refresh() -> None:
    """Reads them now. What plans calls this at its start, so that it goes by what is stored."""
    global _read_mono_s
    _read_mono_s = time.monotonic()
    gpu_types.declare(row.sheet() for row in GpuType.objects.all())


def refresh_if_due() -> None:
    """Reads them at most once in EVERY_S. Without the database those of before stand."""
    if time.monotonic() - _read_mono_s < EVERY_S:
        return
    try:
        refresh()
    except DatabaseError as error:
        logger.warning("GPU types are those of before: %s", error)


def named(names: Iterable[str]) -> list[gpu_types.GpuType]:
    """Returns those of this process that have one of these names."""
    wanted = set(names)
    return [one for one in gpu_types.declared() if one.name in wanted]


class GpuTypesMiddleware:
    """Lets each request count with the types that another process has stored meanwhile."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        refresh_if_due()
        return self.get_response(request)
