"""Studies' tasks. Celery finds them through `scheduler.tasks`."""

from __future__ import annotations

import logging

from celery import shared_task
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from pools import wire
from pools.models import Job, JobState
from scheduler.models import RunState, Study

from . import study_worker
from .studies import stop_runs

log = logging.getLogger(__name__)


@shared_task(acks_late=False, time_limit=study_worker.LIMIT_S + 600)
def run_study(study_id: int) -> bool:
    """Runs all runs of a study. When this worker is lost, `mind_studies` sees to it."""
    return study_worker.run(study_id)


@shared_task
def mind_studies() -> int:
    return study_worker.mind(timezone.now(), _send)


def send(study: Study) -> None:
    """Gives a study to the worker for long runs, once it is stored. Without Redis its job fails, and says so."""
    transaction.on_commit(lambda: _send(study))


def _send(study: Study) -> None:
    try:
        run_study.apply_async(
            (study.pk,), queue=wire.SIMULATIONS_QUEUE, retry=False, expires=study_worker.SEND_AGAIN.total_seconds()
        )
    except (OperationalError, OSError) as error:
        log.warning("study %s could not be given to a worker: %s", study.pk, error)
        words, now = f"Redis does not answer ({error}): ask again when it does", timezone.now()
        if Job.objects.filter(pk=study.job_id, state=JobState.QUEUED).update(
            state=JobState.FAILED, error=words, finished_at=now
        ):
            stop_runs(study.pk, RunState.FAILED, now, words)
