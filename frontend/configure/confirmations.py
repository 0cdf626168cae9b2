"""Asks to confirm a switch before it is carried out: with what it changes, metered and predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from pools.models import Service
from scheduler.operations import previews, visibility

CONFIRMED = "confirmed"


def asked(
    request: HttpRequest, services: Iterable[Service], switch: Callable[[], object], title: str, back: str
) -> HttpResponse | None:
    """Returns the page that asks; None: it has been asked and confirmed. What was sent goes with the confirmation.

    `services`: those whose fleet it concerns. `back`: the address to go to instead.

    Raises:
        ValidationError: The switch makes no sense; the words say why.
        PermissionDenied: The person may not do it.
    """
    if request.POST.get(CONFIRMED) == "yes":
        return None
    whole = {service.pk for service in visibility.whole_services(request.user)}
    found = [(service, previews.of(service, switch) if service.pk in whole else None) for service in services]
    given = [
        (name, value)
        for name, values in request.POST.lists()
        for value in values
        if name not in ("csrfmiddlewaretoken", CONFIRMED)
    ]
    context = {
        "title": title,
        "back": back,
        "given": given,
        "previews": [(service, preview, _sides(preview)) for service, preview in found],
    }
    return render(request, "frontend/configure/confirm.html", context)


def _sides(preview: previews.Preview | None) -> list[tuple[str, object]]:
    return [] if preview is None else [("now, predicted", preview.now), ("then, predicted", preview.then)]
