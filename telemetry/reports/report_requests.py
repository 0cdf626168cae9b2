"""Asks for reports, and finds and signs those that are made. Light: the web process needs no writer of files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from pools.access import audit
from pools.access.audit import Actor
from pools.models import Job, JobState, Site
from telemetry.models import Report, ReportFile, ReportSchedule
from telemetry.report_values.basis import Basis
from telemetry.report_values.errors import BadReport
from telemetry.report_values.inputs import ReportInput
from telemetry.report_values.period import Period
from telemetry.report_values.report_request import read

from . import ledger_source

JOB_KIND = "report"
NOT_WRITTEN = "its files cannot be written: "  # begins the error of a job whose disk was full, or broke


@transaction.atomic
def ask(given: Mapping[str, Any], user: User | None = None, schedule: ReportSchedule | None = None) -> Report:
    """Stores what was asked for, with a job that a worker takes up. Raises BadReport, which names the field."""
    asked = read(given, dict(Site.objects.order_by("rank", "name").values_list("name", "time_zone")))
    period = asked.span()
    _check(period, timezone.now())
    before = Report.objects.filter(asked=asked.as_json(), job__state=JobState.DONE).order_by("-revision", "-id").first()
    return Report.objects.create(
        asked=asked.as_json(),
        period_start=period.start,
        period_end=period.end,
        revision=before.revision + 1 if before else 1,
        revises=before,
        job=Job.objects.create(kind=JOB_KIND, parameters=asked.as_json(), created_by=user),
        schedule=schedule,
        created_by=user,
    )


def _check(period: Period, now: datetime) -> None:
    if period.start >= now:
        raise BadReport("period", f"'{period.text}' has not begun; name one that has")
    settled = ledger_source.settled_period()
    if settled is None:
        raise BadReport(
            "period", "the ledger has settled nothing yet; wait until meters have reported for some minutes"
        )
    if period.end <= settled[0] or period.start >= settled[1]:
        raise BadReport(
            "period",
            f"nothing was metered in '{period.text}'; the ledger reaches from {settled[0]:%Y-%m-%d %H:%M} to "
            f"{settled[1]:%Y-%m-%d %H:%M} UTC",
        )


def inputs(report: Report) -> list[ReportInput]:
    """Returns what a finished report's figures rest on besides the meters; none before it is made."""
    if report.basis is None:
        return []
    basis = Basis.from_json(report.basis)
    return list(basis.inputs.rows(basis.contracts))


def number(report: Report) -> int:
    """All revisions of a report have the number of the first."""
    while report.revises is not None:
        report = report.revises
    return report.pk


@transaction.atomic
def sign(report: Report, actor: Actor, now: datetime) -> bool:
    """Notes who has checked a finished report, here and on the audit trail. Once: a signed report keeps its signature.
    False: it has one, or is not finished."""
    name = "" if actor.user is None else str(actor.user.get_username())
    signed = Report.objects.filter(pk=report.pk, signed_at__isnull=True, job__state=JobState.DONE)
    if not signed.update(signed_by=name, signed_at=now):
        return False
    after = {"signed_by": name, "signed_at": now, "files": dict(report.files.values_list("name", "sha256"))}
    audit.record(actor, "signed", report, {"signed_by": "", "signed_at": None}, after)
    return True


def cancel(report: Report) -> bool:
    """Stops a report that is not finished: at once where no worker has it yet, else soon. False: it is finished."""
    now = timezone.now()
    queued = Job.objects.filter(pk=report.job_id, state=JobState.QUEUED)
    if queued.update(state=JobState.CANCELLED, cancel_requested=True, finished_at=now):
        return True
    return bool(Job.objects.filter(pk=report.job_id, state=JobState.RUNNING).update(cancel_requested=True))


def folder_of(report: Report) -> Path:
    return reports_folder() / str(report.pk)


def path_of(file: ReportFile) -> Path:
    return folder_of(file.report) / file.name


def reports_folder() -> Path:
    found = Path(settings.GREENSERVE_REPORTS_DIR)
    found.mkdir(parents=True, exist_ok=True)
    return found
