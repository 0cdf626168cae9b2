"""Knows what services were last found to be short of: that is kept beside the GPUs that they are to give back.

A look at the claims of all services writes it (`snapshot.offered_nodes`); decisions, pages and REST read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery

from core.algorithms.fleet.sharing import Shortage
from pools.models import Service
from scheduler.models import ControllerState

KIND = "claims"  # of the ControllerState


def as_json(found: Shortage | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def of(service: Service) -> Shortage | None:
    """Returns what the service lacks; None: nothing. One query."""
    values = ControllerState.objects.filter(kind=KIND, service=service).values_list("value", flat=True)
    return _read(next(iter(values), {}))


def with_shortages(services: QuerySet[Any]) -> QuerySet[Any]:
    """Adds to each service what `shown` reads."""
    states = ControllerState.objects.filter(kind=KIND, service=OuterRef("pk"))
    found: QuerySet[Any] = services.annotate(claims_state=Subquery(states.values("value")[:1]))
    return found


def shown(service: Service) -> Shortage | None:
    """Returns what a service of `with_shortages` lacks; None: nothing."""
    return _read(service.claims_state or {})  # type: ignore[attr-defined]


def _read(value: Mapping[str, Any]) -> Shortage | None:
    """Reads a state. One of 0.2.0 has the words alone, until the next look."""
    found = value.get("short")
    return Shortage(**found) if isinstance(found, dict) else None
