"""Makes known to this process what the tables say of engines: GPU types, published profiles, residuals.

Processes with the database read them here; gateways, agents and simulated nodes get them with their messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse

from core.engine import gpu_types
from pools import engine_measurements
from pools.models import GpuType

logger = logging.getLogger(__name__)

EVERY_S = 1.0
_read_mono_s = float("-inf")


def refresh() -> None:
    """Reads them now. What plans calls this at its start, so that it goes by what is stored."""
    global _read_mono_s
    _read_mono_s = time.monotonic()
    gpu_types.declare(row.sheet() for row in GpuType.objects.all())
    engine_measurements.refresh()


def refresh_if_due() -> None:
    """Reads them at most once in EVERY_S. Without the database those of before stand."""
    if time.monotonic() - _read_mono_s < EVERY_S:
        return
    try:
        refresh()
    except DatabaseError as error:
        logger.warning("GPU types and profiles are those of before: %s", error)


def named(names: Iterable[str]) -> list[gpu_types.GpuType]:
    """Returns the GPU types of this process that have one of these names."""
    wanted = set(names)
    return [one for one in gpu_types.declared() if one.name in wanted]


class EngineKnowledgeMiddleware:
    """Lets each request count with what another process has stored meanwhile."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        refresh_if_due()
        return self.get_response(request)
