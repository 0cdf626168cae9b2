"""Reports' tasks. Celery finds them through `telemetry.tasks`."""

from __future__ import annotations

import logging

from celery import shared_task
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from pools import wire
from pools.models import Job, JobState
from telemetry.models import Report, ReportSchedule

from . import schedules

log = logging.getLogger(__name__)

LIMIT_S = 6 * 3_600  # a month of a large fleet, and the replay of its requests


@shared_task(acks_late=False, time_limit=LIMIT_S)
def make_report(report_id: int) -> bool:
    """Makes a report and mails it where a schedule says so. Not given to another worker when this one is lost."""
    from . import report_jobs  # writers of documents and workbooks, which other processes do without

    done = report_jobs.make(report_id)
    report = Report.objects.select_related("schedule").get(pk=report_id)
    if report.schedule is not None:
        trouble = schedules.mail(report) if done else report.job.error
        ReportSchedule.objects.filter(pk=report.schedule.pk).update(last_error=trouble[:500])
    return done


@shared_task
def make_scheduled_reports() -> int:
    """Beat asks each hour; a schedule has its turn once in a week or month."""
    asked = schedules.due(timezone.now())
    for report in asked:
        send(report)
    return len(asked)


def send(report: Report) -> None:
    """Gives a report to the worker for long runs, once it is stored. Without Redis its job fails, and says so."""
    transaction.on_commit(lambda: _send(report))


def _send(report: Report) -> None:
    try:
        make_report.apply_async((report.pk,), queue=wire.SIMULATIONS_QUEUE, retry=False)
    except (OperationalError, OSError) as error:
        log.warning("report %s could not be given to a worker: %s", report.pk, error)
        words = f"Redis does not answer ({error}): ask again when it does"
        Job.objects.filter(pk=report.job_id).update(state=JobState.FAILED, error=words, finished_at=timezone.now())
