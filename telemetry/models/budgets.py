"""Budgets say what a tenant may cost and emit in a month. They stop nothing: pages show how much is used."""

from __future__ import annotations

from decimal import Decimal

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from pools.models import Tenant

_POSITIVE = [MinValueValidator(Decimal("0.01"))]


class Budget(models.Model):
    """A tenant's budget for each calendar month (UTC), at all sites together: money, location-based carbon, or both."""

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

    class Meta:
        ordering = ["tenant__name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(amount__isnull=False) | Q(carbon_kg__isnull=False), name="budget_of_something"
            ),
            models.CheckConstraint(
                condition=Q(amount__gt=0, currency__regex=r"^[A-Z]{3}$") | Q(amount__isnull=True, currency=""),
                name="budget_amount_has_a_currency",
            ),
            models.CheckConstraint(
                condition=Q(carbon_kg__gt=0) | Q(carbon_kg__isnull=True), name="budget_carbon_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"budget of {self.tenant}"

    def clean(self) -> None:
        super().clean()
        if self.amount is None and self.carbon_kg is None:
            raise ValidationError({"amount": "give an amount, or kgCO2e in carbon_kg, or both"})
        if self.amount is None and self.currency:
            raise ValidationError({"currency": "leave it empty without an amount"})
        if self.amount is not None and not (
            len(self.currency) == 3 and self.currency.isascii() and self.currency.isalpha() and self.currency.isupper()
        ):
            raise ValidationError({"currency": "three capitals, such as USD, for the amount"})
