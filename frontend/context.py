"""The context of every page: what of the demo is not real, time zones, where to send a request."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import SimpleLazyObject

from core.policy.knobs import Knobs
from pools.access import rights
from pools.access.rights import AnyUser
from scheduler.control import loop_times
from telemetry.models import SyntheticHistory
from telemetry.storage import synthetic

from . import formats


def page(request: HttpRequest) -> dict[str, Any]:
    """Adds to every page's context. The zones are looked up only by a page that lists them."""
    return {
        "demo": ("Demo: simulated nodes and GPUs, synthetic carbon curves.", _sped_up()) if settings.DEMO else None,
        "synthetic": SimpleLazyObject(_synthetic) if settings.DEMO else None,
        "gateway_url": f"http://{settings.ENV.gateway_host}:{settings.ENV.gateway_port}/v1",
        "zone_name": timezone.get_current_timezone_name(),
        "zones": SimpleLazyObject(lambda: _zones(request.user)),
        "may": SimpleLazyObject(lambda: {str(right): rights.has(request.user, right) for right in rights.Right}),
    }


def _synthetic() -> SyntheticHistory | None:
    """Returns the newest span that was made up. Makes one query, at most once a minute."""
    found: tuple[SyntheticHistory | None] | None = cache.get("synthetic-history")
    if found is None:
        found = (synthetic.newest(),)
        cache.set("synthetic-history", found, 60)
    return found[0]


def _sped_up() -> str:
    """Says how much faster than in production the demo's time passes."""
    carbon = formats.seconds(loop_times.times(Knobs()).carbon_s)
    return (
        f"Time is pressed: carbon epochs come each {carbon}, transition times are divided by "
        f"{settings.GREENSERVE_TRANSITION_SPEEDUP:g}."
    )


def _zones(user: AnyUser) -> list[tuple[str, str]]:
    """Returns UTC, then each zone with those of its sites that this person may see."""
    sites: dict[str, list[str]] = {}
    for site in rights.sites_of(user).exclude(time_zone="UTC"):
        sites.setdefault(site.time_zone, []).append(site.label or site.name)
    return [("UTC", "UTC"), *((zone, f"{zone} ({', '.join(names)})") for zone, names in sites.items())]
