"""Forms of everything that an operator owns, made from the registry: pages show them, imports fill them."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import models

from scheduler.operations.configure import registry, row_limits
from scheduler.operations.configure.registry import Owned

_UNITS = (
    ("_g_per_kwh", "gCO2e/kWh"),
    ("_per_gpu_hour", "per GPU and hour"),
    ("_per_kwh", "per kWh"),
    ("_per_kw", "per kW and month"),
    ("_gb_per_s", "GB/s"),
    ("_tflops", "TFLOP/s"),
    ("_tokens", "tokens"),
    ("_years", "years"),
    ("_rps", "requests/s"),
    ("_mhz", "MHz"),
    ("_kwh", "kWh"),
    ("_kg", "kgCO2e"),
    ("_gb", "GB"),
    ("_w", "W"),
    ("_s", "s"),
)
_WORDS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "tp": "TP", "gpu": "GPU", "pue": "PUE", "uuid": "UUID"}
_WORDS |= {"tdp": "TDP", "id": "id", "gpus": "GPUs", "slo": "SLO", "rps": "rate", "fp8": "FP8", "loras": "LoRAs"}


class JsonField(forms.JSONField):
    """JSON as text; what is not there is an empty text, and no `null`."""

    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except RecursionError:
            raise ValidationError(row_limits.TOO_DEEP) from None


class OwnedForm(forms.ModelForm):  # type: ignore[type-arg]  # it is generic for type checkers alone
    """The form of one row. `take` puts errors of the change itself beside their fields."""

    required_css_class = "required"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.instance.pk is not None:
            for name in registry.of(self.instance).once:
                self.fields.pop(name, None)

    def _post_clean(self) -> None:
        try:
            super()._post_clean()  # type: ignore[misc]
        except (ObjectDoesNotExist, TypeError, AttributeError):
            if not self.errors:  # a row's own check looked at a field that is missing, which has been reported
                raise

    def validate_constraints(self) -> None:
        """Puts broken limits beside the fields that they are of, in words."""
        found = row_limits.broken(self.instance, self._get_validation_exclusions())  # type: ignore[attr-defined]
        for name, texts in found.items():
            self.add_error(name if name in self.fields else None, ValidationError(texts))
        if not found:
            super().validate_constraints()

    def take(self, error: ValidationError) -> None:
        if not hasattr(error, "error_dict"):
            self.add_error(None, error)
            return
        for name, texts in error.message_dict.items():
            self.add_error(name if name in self.fields else None, ValidationError(texts))

    @property
    def related(self) -> dict[str, Any]:
        """The rows that the fields name which name several others."""
        many = [field.name for field in self._meta.model._meta.many_to_many if field.name in self.cleaned_data]
        return {name: list(self.cleaned_data[name]) for name in many}


def form_of(owned: Owned, only: tuple[str, ...] | None = None) -> type[OwnedForm]:
    """Makes the form of a kind; `only` some of its fields."""
    made = forms.modelform_factory(
        owned.model, form=OwnedForm, fields=only or owned.fields, formfield_callback=_form_field
    )
    return cast(type[OwnedForm], made)


def label_of(name: str) -> str:
    """Words and unit: `power_cap_w` is "Power cap, W"."""
    for end, unit in _UNITS:
        if name.endswith(end) and len(name) > len(end):
            return f"{_words(name.removesuffix(end))}, {unit}"
    return _words(name)


def _words(name: str) -> str:
    words = [_WORDS.get(word, word) for word in name.split("_")]
    first = words[0] if words[0][:1].isupper() else words[0].capitalize()
    return " ".join([first, *words[1:]])


def _form_field(field: models.Field[Any, Any], **options: Any) -> forms.Field | None:
    """Makes a field with its unit in the label, and controls that phones and screen readers know."""
    options.setdefault("label", label_of(field.name))
    if isinstance(field, models.DateTimeField):
        widget = forms.DateTimeInput({"type": "datetime-local", "step": 60}, format="%Y-%m-%dT%H:%M")
        options |= {"widget": widget, "help_text": f"{field.help_text} UTC.".strip()}
    elif isinstance(field, models.JSONField):
        options["widget"] = forms.Textarea({"rows": 3, "spellcheck": "false", "class": "code"})
        options["form_class"] = JsonField
    elif isinstance(field, models.ManyToManyField):
        options["widget"] = forms.CheckboxSelectMultiple()
    made = field.formfield(**options)
    if isinstance(made, (forms.FloatField, forms.DecimalField)):
        made.widget.attrs.setdefault("step", "any")
    return made
