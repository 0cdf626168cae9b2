"""The policy of a service: a preset from the papers, and each knob with its words and how far it is from the preset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from core.policy import live_presets
from core.policy.knobs import Knobs
from pools.access import audit, rights
from pools.models import Service
from scheduler.operations.configure import changes


@dataclass(frozen=True, slots=True)
class Knob:
    """One row of the form. `value` and `preset` as they are typed; `choices` empty: free text."""

    name: str
    words: str
    value: str
    preset: str
    choices: tuple[str, ...]
    error: str = ""

    @property
    def differs(self) -> bool:
        return self.value != self.preset


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@rights.needs(rights.Right.VIEW)
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    service = get_object_or_404(Service, pk=pk)
    chosen = request.POST.get("policy") or request.GET.get("preset") or service.policy
    if chosen not in live_presets.LIVE:
        chosen = service.policy
    overrides: dict[str, Any] = service.knobs if chosen == service.policy else {}
    typed = {name: _typed(value) for name, value in overrides.items()}
    errors: dict[str, str] = {}
    if request.method == "POST":
        rights.require(request.user, rights.Right.OPERATE)
        typed = {
            name: request.POST[f"knob-{name}"] for name in live_presets.documented() if f"knob-{name}" in request.POST
        }
        overrides, errors = _read(chosen, typed)
        if not errors:
            service.policy, service.knobs = chosen, overrides
            try:
                changes.update(audit.actor_of(request), service)
            except ValidationError as error:
                errors[""] = " ".join(error.messages)
            else:
                messages.success(request, f"{service} runs {chosen}: all loops decide anew within seconds.")
                return redirect("configure-policy", pk)
    context = {
        "service": service,
        "chosen": chosen,
        "presets": list(live_presets.LIVE),
        "knobs": _knobs(chosen, typed, errors),
        "error": errors.get("", ""),
        "may": rights.has(request.user, rights.Right.OPERATE),
    }
    return render(request, "frontend/configure/policy.html", context)


def _read(chosen: str, typed: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the knobs that differ from the preset, and the errors by knob."""
    preset = live_presets.LIVE[chosen]
    found: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, text in typed.items():
        try:
            value = live_presets.parse(name, text.strip())
            if value != getattr(preset, name):
                found[name] = value
        except ValueError as error:
            errors[name] = str(error)
    if not errors:
        try:
            live_presets.knobs(chosen, found)
        except ValueError as error:
            named = next((name for name in found if str(error).startswith(name)), "")
            errors[named] = str(error)
    return found, errors


def _knobs(chosen: str, typed: dict[str, str], errors: dict[str, str]) -> list[Knob]:
    preset = live_presets.LIVE[chosen]
    words = live_presets.documented()
    found = []
    for name in words:
        usual = _typed(getattr(preset, name))
        found.append(
            Knob(name, words[name], typed.get(name, usual), usual, _choices(name, preset), errors.get(name, ""))
        )
    return found


def _choices(name: str, preset: Knobs) -> tuple[str, ...]:
    """Returns what a knob's value is one of. Of a list any number may stand, which is typed."""
    value = getattr(preset, name)
    if isinstance(value, tuple):
        return ()
    return ("true", "false") if isinstance(value, bool) else live_presets.known(name)


def _typed(value: object) -> str:
    """Writes a knob's value as `live_presets.parse` reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{name}:{weight:g}" for name, weight in value.items())
    return str(value)
