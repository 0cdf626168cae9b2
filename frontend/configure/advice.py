"""The page on which a policy that advises stands beside the policy in force."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from pools.access import rights
from scheduler.control import active_operations, advising
from scheduler.operations import visibility

TURNS = 30


@never_cache
@require_safe
@rights.needs(rights.Right.VIEW)
def page(request: HttpRequest, name: str) -> HttpResponse:
    service = get_object_or_404(visibility.whole_services(request.user), name=name)
    found = advising.side_by_side(service, timezone.now()) if advising.advises(service) else None
    context = {
        "service": service,
        "control_mode": active_operations.control_mode_of(service),
        "sides": [] if found is None else [("in force", found.in_force), ("advises", found.advised)],
        "unknown": [] if found is None else dict.fromkeys([*found.in_force.unknown, *found.advised.unknown]),
        "turns": advising.turns(service)[:TURNS],
    }
    return render(request, "frontend/configure/advice.html", context)
