"""Runs what beat asks of trials, and models their baselines."""

from __future__ import annotations

import logging

from celery import shared_task
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from pools import wire
from pools.models import Job, JobState

from . import modelled, turns

log = logging.getLogger(__name__)

LIMIT_S = 6 * 3_600


@shared_task
def turn_trials() -> int:
    """Gives each service whose trial has come to another block that block's policy. Returns how many were switched."""
    return turns.turn(timezone.now())


@shared_task(acks_late=False, time_limit=LIMIT_S)
def model_baseline(job_id: int) -> bool:
    """Computes the baseline of a trial. Not given to another worker when this one is lost."""
    return modelled.run(job_id)


def send(job: Job) -> None:
    """Gives a job to the worker for long runs, once it is stored. Without Redis it fails, and says so."""
    transaction.on_commit(lambda: _send(job))


def _send(job: Job) -> None:
    try:
        model_baseline.apply_async((job.pk,), queue=wire.SIMULATIONS_QUEUE, retry=False)
    except (OperationalError, OSError) as error:
        log.warning("job %s could not be given to a worker: %s", job.pk, error)
        words = f"Redis does not answer ({error}): ask again when it does"
        Job.objects.filter(pk=job.pk, state=JobState.QUEUED).update(
            state=JobState.FAILED, error=words, finished_at=timezone.now()
        )
