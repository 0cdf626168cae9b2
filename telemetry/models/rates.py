"""Rates that turn joules and GPU time into money and embodied carbon. A row is never changed; a later one counts.

Each row says from when it is valid, where it comes from, and which revision it is; of rows valid at a moment the one
with the latest `valid_from` counts, and of these the one entered last. Entering a row for time past restates that time.
"""

from __future__ import annotations

import math

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q

from core.accounting import tariffs
from pools.models import Site
from pools.models.fleet import PUE_MOST


def _at_least(least: float, value: object) -> bool:
    """`clean` is called for what is no number, too: its field has said so by then."""
    return isinstance(value, int | float) and least <= value < math.inf


class Version(models.Model):
    """The columns that all versioned rates have."""

    valid_from = models.DateTimeField(help_text="From when it holds.")
    valid_to = models.DateTimeField(null=True, blank=True, help_text="Until when it holds; empty: until the next one.")
    source = models.CharField(max_length=300, help_text="Where the figure is from: shown beside what it is used for.")
    version = models.CharField(max_length=60, help_text="The source's own version or date.")
    entered_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True
        ordering = ["valid_from", "id"]

    def clean(self) -> None:
        super().clean()
        if self.valid_to is not None and self.valid_from is not None and self.valid_to <= self.valid_from:
            raise ValidationError({"valid_to": "later than valid_from, or empty"})


class Tariff(Version):
    """What a site pays for electricity: see `core.accounting.tariffs.TariffTerms`. Times are the site's local time."""

    site = models.ForeignKey(Site, on_delete=models.PROTECT, related_name="tariffs")
    currency = models.CharField(max_length=3)
    price_per_kwh = models.FloatField(help_text="When no window holds, in the currency.")
    windows = models.JSONField(default=list, blank=True, help_text="Time of use: from, to, price_per_kwh, days, months")
    demand_per_kw = models.FloatField(default=0.0, help_text="For each kW of the month's peak quarter of an hour.")

    class Meta(Version.Meta):
        constraints = [
            models.CheckConstraint(condition=Q(currency__regex=r"^[A-Z]{3}$"), name="tariff_currency_iso4217"),
            models.CheckConstraint(condition=Q(demand_per_kw__gte=0), name="tariff_demand_not_negative"),
            models.CheckConstraint(
                condition=Q(valid_to__isnull=True) | Q(valid_to__gt=F("valid_from")), name="tariff_interval"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.site} {self.price_per_kwh:g} {self.currency}/kWh from {self.valid_from:%Y-%m-%d}"

    def clean(self) -> None:
        super().clean()
        if not isinstance(self.price_per_kwh, int | float) or not math.isfinite(self.price_per_kwh):
            raise ValidationError({"price_per_kwh": "a number in the tariff's currency"})
        if not _at_least(0.0, self.demand_per_kw):
            raise ValidationError({"demand_per_kw": "at least 0, in the tariff's currency for each kW and month"})
        if self.site_id is None:
            return  # the field says so
        if self.currency != self.site.currency:
            raise ValidationError({"currency": f"{self.site.currency}, which is the site's: sums need one currency"})
        try:
            self.terms()
            tariffs.check_zone(self.site.time_zone)
        except ValueError as error:
            raise ValidationError({"windows": str(error)}) from None

    def terms(self) -> tariffs.TariffTerms:
        """Raises ValueError, naming the window and the field, when the windows make no sense."""
        windows = tariffs.price_windows(self.windows)
        return tariffs.TariffTerms(self.site.time_zone, self.currency, self.price_per_kwh, windows, self.demand_per_kw)


class GpuRate(Version):
    """The price of an hour of a GPU: bought, leased or rented. `site` empty: at every site of this currency."""

    site = models.ForeignKey(Site, on_delete=models.PROTECT, null=True, blank=True, related_name="gpu_rates")
    gpu_type = models.CharField(max_length=40, help_text="As in the inventory of GPUs.")
    currency = models.CharField(max_length=3)
    rate_per_gpu_hour = models.FloatField()

    class Meta(Version.Meta):
        constraints = [
            models.CheckConstraint(condition=Q(currency__regex=r"^[A-Z]{3}$"), name="gpu_rate_currency_iso4217"),
            models.CheckConstraint(condition=Q(rate_per_gpu_hour__gte=0), name="gpu_rate_not_negative"),
            models.CheckConstraint(
                condition=Q(valid_to__isnull=True) | Q(valid_to__gt=F("valid_from")), name="gpu_rate_interval"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_type} {self.rate_per_gpu_hour:g} {self.currency}/h"

    def clean(self) -> None:
        super().clean()
        if not _at_least(0.0, self.rate_per_gpu_hour):
            raise ValidationError({"rate_per_gpu_hour": "at least 0, in the rate's currency"})
        if self.site is not None and self.currency != self.site.currency:
            raise ValidationError({"currency": f"{self.site.currency}, which is the site's: sums need one currency"})


class EmbodiedFactor(Version):
    """Emissions of making a GPU and its share of the server. `gpu_type` empty: any that has no factor of its own."""

    gpu_type = models.CharField(max_length=40, blank=True)
    gpu_kg = models.FloatField(help_text="kgCO2e of one GPU.")
    server_kg = models.FloatField(default=0.0, help_text="kgCO2e of the server without its GPUs.")
    gpus_per_server = models.PositiveSmallIntegerField(default=8)
    lifespan_years = models.FloatField()

    class Meta(Version.Meta):
        constraints = [
            models.CheckConstraint(condition=Q(gpu_kg__gte=0) & Q(server_kg__gte=0), name="embodied_not_negative"),
            models.CheckConstraint(
                condition=Q(lifespan_years__gt=0) & Q(gpus_per_server__gt=0), name="embodied_positive"
            ),
            models.CheckConstraint(
                condition=Q(valid_to__isnull=True) | Q(valid_to__gt=F("valid_from")), name="embodied_interval"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_type or 'any GPU'} {self.total_kg:g} kg over {self.lifespan_years:g} years"

    def clean(self) -> None:
        super().clean()
        for name, least in (("gpu_kg", 0.0), ("server_kg", 0.0), ("lifespan_years", 1e-3)):
            if not _at_least(least, getattr(self, name)):
                raise ValidationError({name: f"at least {least:g}"})
        if not _at_least(1, self.gpus_per_server):
            raise ValidationError({"gpus_per_server": "at least 1"})

    @property
    def total_kg(self) -> float:
        """TE of one GPU: itself, and its part of the server."""
        return self.gpu_kg + self.server_kg / self.gpus_per_server


class Pue(Version):
    """A site's power usage effectiveness; without a row the site's own field is valid, which knows no time."""

    site = models.ForeignKey(Site, on_delete=models.PROTECT, related_name="pues")
    value = models.FloatField()

    class Meta(Version.Meta):
        constraints = [
            models.CheckConstraint(condition=Q(value__gte=1.0), name="pue_at_least_1"),
            models.CheckConstraint(
                condition=Q(valid_to__isnull=True) | Q(valid_to__gt=F("valid_from")), name="pue_interval"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.site} PUE {self.value:g} from {self.valid_from:%Y-%m-%d}"

    def clean(self) -> None:
        super().clean()
        if not _at_least(1.0, self.value):
            raise ValidationError({"value": "at least 1: all of the site's energy over that of its machines"})
        if self.value > PUE_MOST:
            raise ValidationError({"value": f"at most {PUE_MOST:g}, as a site's own"})
