"""Stops long work, whatever kind it is."""

from __future__ import annotations

from django.utils import timezone

from pools.models import Job, JobState
from scheduler.models import Study
from scheduler.whatif import studies


def cancel(job: Job) -> bool:
    """Cancels a job: at once where no worker has it yet, else as soon as its worker looks.

    Returns False when it is finished.
    """
    study = Study.objects.filter(job=job).first()
    if study is not None:
        return studies.cancel(study)
    queued = Job.objects.filter(pk=job.pk, state=JobState.QUEUED)
    if queued.update(state=JobState.CANCELLED, cancel_requested=True, finished_at=timezone.now()):
        return True
    return bool(Job.objects.filter(pk=job.pk, state=JobState.RUNNING).update(cancel_requested=True))
