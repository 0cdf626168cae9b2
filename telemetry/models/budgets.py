"""Budgets say what a tenant may use, emit and cost in a month. Some refuse what is beyond; pages show what is used."""

from __future__ import annotations

from decimal import Decimal

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from core import bounds
from pools.models import Tenant

_POSITIVE = [MinValueValidator(Decimal("0.01"))]


def _of_tokens() -> list[MinValueValidator | MaxValueValidator]:
    bound = bounds.of("tokens", "budget")
    assert bound is not None
    return [MinValueValidator(int(bound.least)), MaxValueValidator(int(bound.most))]


class Budget(models.Model):
    """A tenant's budget for each calendar month (UTC), at all sites together: one to four amounts.

    `refuses`: once one of them is spent, gateways refuse the tenant's requests until the month ends.
    """

    tenant = models.OneToOneField(Tenant, on_delete=models.CASCADE, related_name="budget")
    amount = models.DecimalField(
        max_digits=14,
        decimal_places=2,
        null=True,
        blank=True,
        validators=_POSITIVE,
        help_text="Electricity and GPU-hours of a month, in the currency.",
    )
    currency = models.CharField(max_length=3, blank=True, help_text="Of the amount, such as USD.")
    carbon_kg = models.DecimalField(
        max_digits=14,
        decimal_places=2,
        null=True,
        blank=True,
        validators=_POSITIVE,
        help_text="kgCO2e of a month, location-based.",
    )
    energy_kwh = models.DecimalField(
        max_digits=14,
        decimal_places=2,
        null=True,
        blank=True,
        validators=_POSITIVE,
        help_text="Serving energy of a month in kWh.",
    )
    tokens = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        validators=_of_tokens(),
        help_text="Tokens of a month, of prompts and answers.",
    )
    refuses = models.BooleanField(
        default=False, help_text="Refuse the tenant's requests for the rest of the month once an amount is spent."
    )

    class Meta:
        ordering = ["tenant__name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(amount__isnull=False)
                | Q(carbon_kg__isnull=False)
                | Q(energy_kwh__isnull=False)
                | Q(tokens__isnull=False),
                name="budget_of_something",
            ),
            models.CheckConstraint(
                condition=Q(amount__gt=0, currency__regex=r"^[A-Z]{3}$") | Q(amount__isnull=True, currency=""),
                name="budget_amount_has_a_currency",
            ),
            models.CheckConstraint(
                condition=Q(carbon_kg__gt=0) | Q(carbon_kg__isnull=True), name="budget_carbon_positive"
            ),
            models.CheckConstraint(
                condition=Q(energy_kwh__gt=0) | Q(energy_kwh__isnull=True), name="budget_energy_positive"
            ),
            models.CheckConstraint(condition=Q(tokens__gt=0) | Q(tokens__isnull=True), name="budget_tokens_positive"),
        ]

    def __str__(self) -> str:
        return f"budget of {self.tenant}"

    def clean(self) -> None:
        super().clean()
        if all(value is None for value in (self.amount, self.carbon_kg, self.energy_kwh, self.tokens)):
            words = "give an amount, kgCO2e in carbon_kg, kWh in energy_kwh, or tokens: at least one of them"
            raise ValidationError({"amount": words})
        if self.amount is None and self.currency:
            raise ValidationError({"currency": "leave it empty without an amount"})
        if self.amount is not None and not (
            len(self.currency) == 3 and self.currency.isascii() and self.currency.isalpha() and self.currency.isupper()
        ):
            raise ValidationError({"currency": "three capitals, such as USD, for the amount"})
