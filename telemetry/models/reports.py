"""Reports and what they rest on besides the ledger: contracts for electricity, and schedules."""

from __future__ import annotations

import math
from decimal import Decimal

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, validate_email
from django.db import models
from django.db.models import F, Q

from pools.models import Job, Site
from telemetry.report_values.errors import BadReport
from telemetry.report_values.report_request import read

VOLUME_KINDS = ("ppa", "certificate")


class Instrument(models.Model):
    """A contractual instrument for a site's electricity (GHG Protocol, Scope 2): what market-based emissions rest on.

    A row is never changed: a report keeps what it used, and a correction is another row with `replaces`.
    """

    class InstrumentKind(models.TextChoices):
        PPA = "ppa", "power purchase agreement"
        CERTIFICATE = "certificate", "energy attribute certificates (REC, GO)"
        SUPPLIER = "supplier", "supplier's own factor"
        RESIDUAL = "residual", "residual mix"

    site = models.ForeignKey(Site, on_delete=models.PROTECT, related_name="instruments")
    kind = models.CharField(max_length=12, choices=InstrumentKind)
    factor_g_per_kwh = models.DecimalField(
        max_digits=10, decimal_places=4, validators=[MinValueValidator(Decimal(0))], help_text="gCO2e/kWh by contract."
    )
    volume_kwh = models.DecimalField(
        max_digits=18,
        decimal_places=3,
        null=True,
        blank=True,
        help_text="What it covers from valid_from to valid_to, for PPAs and certificates; used evenly over that time.",
    )
    valid_from = models.DateTimeField()
    valid_to = models.DateTimeField()
    source = models.CharField(max_length=300, help_text="Contract or certificate numbers, or the disclosure.")
    replaces = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="replaced_by")
    entered_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["site", "valid_from", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(factor_g_per_kwh__gte=0), name="instrument_factor_not_negative"),
            models.CheckConstraint(condition=Q(valid_to__gt=F("valid_from")), name="instrument_interval"),
            models.CheckConstraint(
                condition=Q(kind__in=VOLUME_KINDS, volume_kwh__gt=0)
                | (~Q(kind__in=VOLUME_KINDS) & Q(volume_kwh__isnull=True)),
                name="instrument_volume",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.site} {self.kind} {self.factor_g_per_kwh} g/kWh"

    def clean(self) -> None:
        super().clean()
        volume = self.volume_kwh
        if self.kind in VOLUME_KINDS and not (isinstance(volume, int | float | Decimal) and 0 < volume < math.inf):
            raise ValidationError({"volume_kwh": "above 0: an agreement or certificate covers so many kWh"})
        if self.kind not in VOLUME_KINDS and volume is not None:
            raise ValidationError({"volume_kwh": "leave it empty: a supplier's factor and a residual mix have none"})
        if self.valid_from is not None and self.valid_to is not None and self.valid_to <= self.valid_from:
            raise ValidationError({"valid_to": "later than valid_from"})
        before = self.replaces
        if before is not None and before.site_id != self.site_id:
            raise ValidationError({"replaces": f"it is an instrument of {before.site}: choose one of this site"})
        if before is not None and before.replaced_by.exclude(pk=self.pk).exists():
            raise ValidationError({"replaces": "it is replaced already: choose the one that is valid now"})


class ReportSchedule(models.Model):
    """A report that is made by itself when a week or month is over and settled, and mailed."""

    class Cadence(models.TextChoices):
        WEEKLY = "weekly"
        MONTHLY = "monthly"

    name = models.CharField(max_length=100, unique=True)
    cadence = models.CharField(max_length=8, choices=Cadence)
    asked = models.JSONField(default=dict, blank=True, help_text="Fields of a report besides its period.")
    recipients = models.JSONField(default=list, blank=True, help_text="Mail addresses.")
    enabled = models.BooleanField(default=True)
    last_period = models.CharField(max_length=40, blank=True, help_text="The newest period that was asked for.")
    last_error = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return f"{self.name} ({self.cadence})"

    def clean(self) -> None:
        super().clean()
        if not isinstance(self.recipients, list):
            raise ValidationError({"recipients": "a list of mail addresses"})
        for address in self.recipients:
            try:
                validate_email(address)
            except ValidationError:
                raise ValidationError({"recipients": f"'{address}' is no mail address"}) from None
        self._check_asked()

    def _check_asked(self) -> None:
        """By the rules of a report, for some period: the schedule's own comes later."""
        if not isinstance(self.asked, dict):
            raise ValidationError({"asked": 'an object with fields of a report, such as {"by": ["site"]}'})
        if "period" in self.asked:
            raise ValidationError({"asked": "leave the period out: it is the week or month that is over"})
        zones = dict(Site.objects.order_by("rank", "name").values_list("name", "time_zone"))
        try:
            read({**self.asked, "period": "2026-01"}, zones)
        except BadReport as error:
            raise ValidationError({"asked": str(error)}) from None


class Report(models.Model):
    """A report: what was asked, the ledger's version that it was made from, and what else it rests on (`basis`).

    From these its files come out the same, byte for byte, whenever they are made. The same report asked for again gets
    the next `revision`, with what changed since the one before in `changes`.
    """

    asked = models.JSONField(help_text="The report's period, time zone, grouping, formats and sites.")
    period_start = models.DateTimeField()
    period_end = models.DateTimeField()
    revision = models.PositiveIntegerField(default=1)
    revises = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="revised_by")
    ledger_version = models.BigIntegerField(null=True, help_text="The newest settlement that is in it.")
    basis = models.JSONField(null=True, help_text="Names, contracts, meters and SLO counts as they were.")
    summary = models.JSONField(null=True, help_text="The figures that lists show; null is not known.")
    changes = models.JSONField(default=list, help_text="Intervals that differ from the revision before.")
    job = models.OneToOneField(Job, on_delete=models.PROTECT, related_name="report")
    schedule = models.ForeignKey(ReportSchedule, on_delete=models.SET_NULL, null=True, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)
    signed_by = models.CharField(max_length=150, blank=True)
    signed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [models.CheckConstraint(condition=Q(period_end__gt=F("period_start")), name="report_period")]

    def __str__(self) -> str:
        return f"R{self.pk}.{self.revision}"


class ReportFile(models.Model):
    """One file of a report, kept under `settings.GREENSERVE_REPORTS_DIR`; `sha256` is that of its bytes."""

    report = models.ForeignKey(Report, on_delete=models.CASCADE, related_name="files")
    format = models.CharField(max_length=70)  # an invoice's has its tenant's name
    name = models.CharField(max_length=160)
    sha256 = models.CharField(max_length=64)
    size_bytes = models.BigIntegerField()
    rows = models.BigIntegerField(null=True)

    class Meta:
        ordering = ["report", "id"]
        constraints = [models.UniqueConstraint(fields=["report", "format"], name="report_file_once")]

    def __str__(self) -> str:
        return self.name
