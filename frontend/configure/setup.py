"""The page *From empty to serving*: each step with its state, or what to do."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from pools.access import rights
from scheduler.operations.configure import readiness
from scheduler.operations.configure.registry import OWNED


@never_cache
@require_safe
@rights.needs(rights.Right.VIEW)
def page(request: HttpRequest) -> HttpResponse:
    steps = readiness.steps(timezone.now())
    following = next((step for step in steps if not step.done), None)
    may = {kind for kind, owned in OWNED.items() if rights.has(request.user, owned.right)}
    context = {"steps": steps, "following": following, "may": may}
    template = "frontend/configure/steps.html" if request.GET.get("part") else "frontend/configure/setup.html"
    return render(request, template, context)
