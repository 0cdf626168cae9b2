"""What every page needs: the demo's honesty, time zones to choose from, where to send a request."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import SimpleLazyObject

from pools.models import Site

from . import formats


def page(request: HttpRequest) -> dict[str, Any]:
    """Context processor. The zones are looked up only by a page that lists them."""
    return {
        "demo": demo_words() if settings.DEMO else None,
        "gateway_url": f"http://{settings.ENV.gateway_host}:{settings.ENV.gateway_port}/v1",
        "zone_name": timezone.get_current_timezone_name(),
        "zones": SimpleLazyObject(_zones),
    }


def demo_words() -> str:
    """One sentence or two that say what in the demo is not as in real life."""
    period = {kind: formats.seconds(loop["period_s"]) for kind, loop in settings.GREENSERVE_LOOPS.items()}
    return (
        f"Demo: nodes and GPUs are simulated and the carbon curves are synthetic. Loops are sped up: carbon and scale "
        f"each {period['carbon']}, shard {period['shard']}, clock {period['clock']}; transition times divided by "
        f"{settings.GREENSERVE_TRANSITION_SPEEDUP:g}."
    )


def _zones() -> list[tuple[str, str]]:
    """UTC, then each zone with the sites in it."""
    sites: dict[str, list[str]] = {}
    for site in Site.objects.exclude(time_zone="UTC"):
        sites.setdefault(site.time_zone, []).append(site.label or site.name)
    return [("UTC", "UTC"), *((zone, f"{zone} ({', '.join(names)})") for zone, names in sites.items())]
