"""Forms of the pages of people and keys. Rules that apply elsewhere too are in `pools.access.people`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone

from pools.access import rights
from pools.models import LIMITS, ApiKey, Membership, Service, Site, Tenant

LIFETIMES = (("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "1 year"), ("", "no end"))
ROLE_WORDS = {
    "none": "None: may sign in, and sees nothing",
    "viewer": "Viewer: sees everything of their sites",
    "operator": "Operator: and changes what serves, and how",
    "finance": "Finance: sees, makes and signs reports, sets prices and factors",
    "administrator": "Administrator: all of that, people and keys",
}
RIGHT_WORDS = {
    "view": "view: read everything",
    "operate": "operate: change what serves, and how",
    "finance": "finance: reports, prices and factors",
    "administer": "administer: people and keys",
}


class Fields(forms.Form):
    """A form whose fields say in HTML what describes them and whether they are right."""

    def take(self, error: ValidationError) -> None:
        """Adds a service's errors to the fields that they name."""
        found: Mapping[str, Any] = error.error_dict if hasattr(error, "error_dict") else {"": error.error_list}
        for name, errors in found.items():
            self.add_error(name if name in self.fields else None, errors)


class RoleForm(Fields):
    role = forms.ChoiceField(choices=list(ROLE_WORDS.items()), initial=Membership.Role.VIEWER)
    sites = forms.ModelMultipleChoiceField(
        Site.objects.all(),
        to_field_name="name",
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="None chosen: all sites.",
    )


class PersonForm(RoleForm):
    username = forms.CharField(
        label="User name",
        max_length=150,
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none"}),
    )
    email = forms.EmailField(label="E-mail", required=False)
    field_order = ("username", "email", "role", "sites")


class TenantInput(forms.TextInput):
    """Suggests tenants by what is typed: a thousand are long to choose from, and take most of a page's time."""

    template_name = "frontend/people/tenant_input.html"


class KeyForm(Fields):
    tenant = forms.ModelChoiceField(
        Tenant.objects.all(),
        to_field_name="name",
        widget=TenantInput(attrs={"autocomplete": "off", "autocapitalize": "none"}),
        error_messages={"invalid_choice": "No tenant has that name."},
        help_text="Type a part of the name, and choose among those that have it.",
    )
    label = forms.CharField(label="What for", max_length=100)
    lifetime = forms.ChoiceField(label="Valid for", choices=LIFETIMES, initial="90", required=False)
    services = forms.ModelMultipleChoiceField(
        Service.objects.order_by("name"),
        to_field_name="name",
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="None chosen: all services.",
    )
    addresses = forms.CharField(
        label="May be used from",
        required=False,
        widget=forms.Textarea(attrs={"rows": 2, "autocapitalize": "none", "spellcheck": "false"}),
        help_text="Networks such as 192.0.2.0/24 or 2001:db8::/48, with commas or spaces between; empty: anywhere.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields |= forms.fields_for_model(
            ApiKey, LIMITS, formfield_callback=lambda field: field.formfield(min_value=1)
        )

    def clean_addresses(self) -> list[str] | None:
        return self.cleaned_data["addresses"].replace(",", " ").split() or None

    def may(self) -> dict[str, Any]:
        """Returns what the key may, as `people.new_key` takes it."""
        given = self.cleaned_data
        names = [service.name for service in given["services"]] or None
        return {"services": names, "addresses": given["addresses"], **{name: given[name] for name in LIMITS}}


class ProofForm(Fields):
    """The person themselves sits there: their password. Who has none (an identity provider has it) must have signed in
    there a moment ago (`account._proven`)."""

    current = forms.CharField(
        label="Your password", widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}), strip=False
    )

    def __init__(self, has_password: bool, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("auto_id", "proof_%s")  # other forms of the page ask for a password, too
        super().__init__(*args, **kwargs)
        if not has_password:
            del self.fields["current"]


class TokenForm(ProofForm):
    """`person` chooses among their own rights and sites, and proves again that it is they: by a code where they have
    two-step sign-in, else as in ProofForm."""

    label = forms.CharField(label="What for", max_length=100)
    rights = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple)
    sites = forms.ModelMultipleChoiceField(
        Site.objects.none(),
        to_field_name="name",
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="None chosen: all of yours.",
    )
    lifetime = forms.ChoiceField(label="Valid for", choices=LIFETIMES, initial="90", required=False)
    app_code = forms.CharField(
        label="Code of your app, or a recovery code",
        widget=forms.TextInput(attrs={"autocomplete": "one-time-code"}),
        max_length=20,
    )
    field_order = ("label", "rights", "sites", "lifetime", "current", "app_code")

    def __init__(self, person: Any, two_step: bool, *args: Any, **kwargs: Any) -> None:
        super().__init__(person.has_usable_password() and not two_step, *args, auto_id="token_%s", **kwargs)
        if not two_step:
            del self.fields["app_code"]
        theirs = [right for right in rights.Right if rights.has(person, right)]
        chosen, sites = self.fields["rights"], self.fields["sites"]
        assert isinstance(chosen, forms.MultipleChoiceField)
        assert isinstance(sites, forms.ModelMultipleChoiceField)
        chosen.choices = [(str(right), RIGHT_WORDS[right]) for right in theirs]
        chosen.initial = [str(rights.Right.VIEW)]
        sites.queryset = rights.sites_of(person)


class PasswordForm(Fields):
    """The current one is asked for where there is one, and where it was not typed a moment ago to get in."""

    current = forms.CharField(
        label="Your password now", widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}), strip=False
    )
    new = forms.CharField(
        label="New password",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        strip=False,
        help_text="At least 12 characters; longer is better than stranger.",
    )
    again = forms.CharField(
        label="New password again", widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}), strip=False
    )

    def clean(self) -> dict[str, Any] | None:
        found = super().clean()
        if found and "new" in found and "again" in found and found["new"] != found["again"]:
            self.add_error("again", "Both must be the same.")
        return found


class TwoStepForm(ProofForm):
    code = forms.CharField(
        label="Code of your app",
        widget=forms.TextInput(attrs={"autocomplete": "one-time-code", "inputmode": "numeric"}),
        max_length=10,
    )


def expiry(lifetime: str) -> datetime | None:
    return timezone.now() + timedelta(days=int(lifetime)) if lifetime else None
