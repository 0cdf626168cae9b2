"""The policy of a service: a preset from the papers, and each knob and each field of tuning with its words and how far
it is from the preset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from core.policy import presets
from core.policy.presets import Policy
from core.policy.setting_texts import SETTINGS, by_name, documented, parse, stored, text_of, value_of, without_effect
from pools.access import audit, rights
from pools.models import Service
from scheduler.operations.configure import changes, consequences

from . import confirmations


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the form. `value` and `preset` as they are typed; `choices` empty: free text.

    `unset`: what it stands for where nothing is typed; empty: something must be.
    """

    name: str
    words: str
    value: str
    preset: str
    choices: tuple[str, ...]
    unset: str
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
    if chosen not in presets.PRESETS:
        chosen = service.policy
    overrides: dict[str, Any] = service.knobs if chosen == service.policy else {}
    typed = {name: text_of(value) for name, value in by_name(overrides).items()}
    errors: dict[str, str] = {}
    if request.method == "POST":
        rights.require(request.user, rights.Right.OPERATE)
        typed = {name: request.POST[f"knob-{name}"] for name in SETTINGS if f"knob-{name}" in request.POST}
        overrides, errors = _read(chosen, typed)
        if not errors:
            service.policy, service.knobs = chosen, overrides
            actor, back = audit.actor_of(request), reverse("configure-policy", args=[pk])
            title = f"Give {service} the policy {chosen}?"
            try:
                page = confirmations.asked(request, [service], lambda: changes.update(actor, service), title, back)
                if page is not None:
                    return page
                changes.update(actor, service)
            except ValidationError as error:
                errors[""] = " ".join(error.messages)
            else:
                messages.success(request, f"{service} has the policy {chosen} now. {consequences.taken_up(service)}")
                return redirect("configure-policy", pk)
    rows = _rows(chosen, typed, errors)
    tuning = [row for row in rows if "." in row.name]
    context = {
        "service": service,
        "chosen": chosen,
        "presets": list(presets.PRESETS),
        "knobs": [row for row in rows if "." not in row.name],
        "tuning": tuning,
        "tuning_open": any(row.differs or row.error for row in tuning),
        "without_effect": without_effect(service.knobs) if not errors else (),
        "error": errors.get("", ""),
        "may": rights.has(request.user, rights.Right.OPERATE),
    }
    return render(request, "frontend/configure/policy.html", context)


def _read(chosen: str, typed: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns what differs from the preset, as it is stored, and the errors by setting."""
    preset = presets.policy(chosen)
    found: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, text in typed.items():
        try:
            value = parse(name, text.strip())
            if value != value_of(preset, name):
                found[name] = value
        except ValueError as error:
            errors[name] = str(error)
    if not errors:
        try:
            presets.policy(chosen, stored(found))
        except ValueError as error:
            said = str(error).removeprefix("tuning.")
            errors[next((name for name in found if said.startswith(name)), "")] = said
    return stored(found), errors


def _rows(chosen: str, typed: dict[str, str], errors: dict[str, str]) -> list[Setting]:
    preset = presets.policy(chosen)
    found = []
    for name, words in documented().items():
        usual = text_of(value_of(preset, name))
        value, choices, unset = typed.get(name, usual), _choices(name, preset), SETTINGS[name].metadata["unset"]
        found.append(Setting(name, words, value, usual, choices, unset, errors.get(name, "")))
    return found


def _choices(name: str, preset: Policy) -> tuple[str, ...]:
    """Returns what a setting's value is one of. Of a list any number may stand, which is typed."""
    value = value_of(preset, name)
    if isinstance(value, tuple):
        return ()
    return ("true", "false") if isinstance(value, bool) else SETTINGS[name].metadata["choices"]
