"""Reports, their files, and their schedules."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import models
from django.db.models import F, Q

from pools.models import Job, Site
from telemetry.report_values.errors import BadReport
from telemetry.report_values.report_request import read


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
