"""Studies that are stored: found, read, stopped. What is asked for is taken up by `study_requests`."""

from __future__ import annotations

import zlib
from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from pools.access import rights
from pools.access.rights import AnyUser
from pools.models import Job, JobState
from scheduler.models import RunState, Study, StudyRun

from .scenario_documents import RunSpec


def cancel(study: Study) -> bool:
    """Stops a study that is not finished: at once where no worker has it yet, else soon. False: it is finished."""
    now = timezone.now()
    with transaction.atomic():
        queued = Job.objects.filter(pk=study.job_id, state=JobState.QUEUED)
        if queued.update(state=JobState.CANCELLED, cancel_requested=True, finished_at=now):
            stop_runs(study.pk, RunState.CANCELLED, now)
            return True
    return bool(Job.objects.filter(pk=study.job_id, state=JobState.RUNNING).update(cancel_requested=True))


def stop_runs(study_id: int, state: str, now: datetime, error: str = "") -> None:
    """Of a study that ends early: those of its runs that did not come to an end."""
    waiting = StudyRun.objects.filter(study_id=study_id, state__in=[RunState.QUEUED, RunState.RUNNING])
    waiting.update(state=state, finished_at=now, error=error)


def visible(user: AnyUser) -> QuerySet[Study]:
    """Returns the studies that a person may see: all; with a role for some sites, only the person's own."""
    found = Study.objects.select_related("job", "created_by")
    return found if rights.everywhere(user) else found.filter(created_by_id=user.pk)


def files_of(study: Study) -> dict[str, bytes]:
    return {file.name: zlib.decompress(bytes(file.data)) for file in study.files.all()}


def spec_of(run: StudyRun) -> RunSpec:
    return RunSpec(run.policy, run.knobs, tuple(run.changes), run.label)
