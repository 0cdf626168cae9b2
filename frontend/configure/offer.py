"""The page *Offer a model*: one form for all that a new service needs."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from core.policy import presets
from pools.access import audit, rights
from pools.models import Service, Site
from scheduler.operations.configure import offering
from scheduler.operations.configure.offering import LOAD, PERCENTILE, Offer

from ..people.forms import Fields

GROUPS = (
    ("What clients call", ("name", "model", "max_model_len")),
    ("How fast it answers", ("ttft_s", "tpot_s", "e2e_s", "percentile")),
    ("Load to plan for until it is known", LOAD),
    ("Where, and what runs it", ("sites", "policy")),
)


class ModelInput(forms.TextInput):
    """Suggests the models that are known."""

    template_name = "frontend/configure/model_input.html"

    def get_context(self, *args: Any) -> dict[str, Any]:
        return {**super().get_context(*args), "known": offering.known_models()}


def _number(label: str, help_text: str, least: float = 0.0, **options: Any) -> forms.FloatField:
    widget = forms.NumberInput({"step": "any"})
    return forms.FloatField(label=label, help_text=help_text, min_value=least, widget=widget, **options)


class OfferForm(Fields):
    required_css_class = "required"

    name = forms.CharField(max_length=100, help_text="The `model` that clients send.")
    model = forms.CharField(
        max_length=100,
        widget=ModelInput({"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}),
        help_text="One under Models, or one that the engine model knows.",
    )
    max_model_len = forms.IntegerField(
        label="Context, tokens",
        required=False,
        min_value=1,
        help_text="Longest prompt plus output; empty: the model is under Models already.",
    )
    ttft_s = _number("TTFT, s", "Until the first token.", required=False, initial=2.0)
    tpot_s = _number("TPOT, s", "From token to token, on average.", required=False, initial=0.15)
    e2e_s = _number("E2E, s", "Until the whole answer.", required=False)
    percentile = _number("Percentile", "So many of 100 requests are to be so fast.", initial=PERCENTILE)
    expected_rps = _number("Rate, requests/s", "Empty: the first plan is for next to nothing.", required=False)
    expected_prompt_tokens = forms.IntegerField(label="Mean length of prompts, tokens", required=False, min_value=1)
    expected_output_tokens = forms.IntegerField(label="Mean length of answers, tokens", required=False, min_value=1)
    sites = forms.ModelMultipleChoiceField(
        Site.objects.all(),
        to_field_name="name",
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="None chosen: all sites.",
    )
    policy = forms.ChoiceField(choices=presets.choices, initial=presets.DEFAULT)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@rights.needs(rights.Right.OPERATE)
def page(request: HttpRequest) -> HttpResponse:
    form = OfferForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            made: Service = offering.make(audit.actor_of(request), Offer.of_fields(form.cleaned_data))
        except ValidationError as error:
            form.take(error)
        else:
            messages.success(request, f"{made} is offered: its first instances start within a minute.")
            return redirect("service", made.name)
    fieldsets = [(title, [form[name] for name in names]) for title, names in GROUPS]
    return render(request, "frontend/configure/offer.html", {"form": form, "fieldsets": fieldsets})
