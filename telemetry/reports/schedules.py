"""Reports that are made by themselves when a week or a month is over, and the mail that carries them."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.core.mail import EmailMessage

from pools.models import Job, JobState, Site
from telemetry.models import Report, ReportSchedule
from telemetry.report_values.errors import BadReport
from telemetry.report_values.period import last_period, parse_period
from telemetry.report_values.report_request import SITE_ZONE, ReportRequest

from . import ledger_source, report_requests
from .ledger_source import Scope
from .report_requests import NOT_WRITTEN

log = logging.getLogger(__name__)

PATIENCE = timedelta(hours=48)  # after the period's end the report is made even if the ledger is behind: provisional
MOST_MAIL_BYTES = 10 << 20  # of attachments; larger files are fetched, not mailed
ATTACHED = ("pdf", "xlsx", "reconciliation")
NO_MAIL = "mail is not set up: set GREENSERVE_EMAIL_URL, and GREENSERVE_EMAIL_FROM"


def due(now: datetime) -> list[Report]:
    """Asks for the reports of all schedules whose last period is over. What is in the way stands on the schedule."""
    queued = []
    for schedule in ReportSchedule.objects.filter(enabled=True):
        try:
            report = _again(schedule) or _ask(schedule, now)
            words = ""
        except BadReport as error:
            report, words = None, str(error)
        if report is not None:
            queued.append(report)
            schedule.last_period = report.asked["period"]
        if report is not None or schedule.last_error != words:
            schedule.last_error = words[:500]
            schedule.save(update_fields=["last_period", "last_error"])
    return queued


def _again(schedule: ReportSchedule) -> Report | None:
    """Queues the last report once more where the disk was at fault; its error stands until it is done."""
    failed = Report.objects.filter(schedule=schedule, job__state=JobState.FAILED, job__cancel_requested=False)
    report = failed.filter(job__error__startswith=NOT_WRITTEN).select_related("job").order_by("-pk").first()
    if report is None or report.asked["period"] != schedule.last_period:
        return None
    Job.objects.filter(pk=report.job_id).update(state=JobState.QUEUED, progress=0.0)
    return report


def _ask(schedule: ReportSchedule, now: datetime) -> Report | None:
    zone = schedule.asked.get("zone") or "UTC"
    if zone == SITE_ZONE:
        zone = Site.objects.filter(name__in=schedule.asked.get("sites", [])).values_list("time_zone", flat=True).first()
    period = last_period(schedule.cadence, zone or "UTC", now)
    if period == schedule.last_period:
        return None
    span = parse_period(period, zone or "UTC")
    if now < span.end + PATIENCE:
        sites = tuple(Site.objects.order_by("pk").values_list("pk", flat=True))
        until_s = ledger_source.settled_until_s(Scope(span, ledger_source.newest_version() or 0, sites))
        if until_s < span.end_s:
            return None  # the ledger is on its way
    return report_requests.ask({**schedule.asked, "period": period}, schedule=schedule)


def mail(report: Report) -> str:
    """Sends a finished report to its schedule's recipients; returns what was in the way, nothing if nothing was."""
    schedule = report.schedule
    if schedule is None or not schedule.recipients:
        return ""
    if settings.MAIL_SERVER is None:
        return NO_MAIL
    summary = report.summary or {}
    request = ReportRequest.from_json(report.asked)
    lines = [
        f"{schedule.name}, {request.span().words}, version {summary.get('version')}.",
        "It is provisional: part of the period is not settled yet." if summary.get("provisional") else "",
        "",
        "Files and their SHA-256:",
        *(f"{file.sha256}  {file.name}" for file in report.files.all()),
    ]
    message = EmailMessage(
        subject=f"{schedule.name}: {request.span().words}",
        body="\n".join(lines) + "\n",
        to=list(schedule.recipients),
    )
    room = MOST_MAIL_BYTES
    for file in report.files.filter(format__in=ATTACHED).order_by("id"):
        if file.size_bytes <= room:
            room -= file.size_bytes
            message.attach(file.name, report_requests.path_of(file).read_bytes(), "application/octet-stream")
    try:
        message.send()
    except OSError as error:  # smtplib's errors are
        log.warning("report %s could not be mailed: %s", report.pk, error)
        return f"the mail could not be sent: {error}"
    return ""
