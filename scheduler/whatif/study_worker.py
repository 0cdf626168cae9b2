"""The worker's side of studies: their runs one after another, how far they are, and what is done when a worker is lost.

A study has a turn (`attempts`): a worker that was thought lost and comes back finds that the turn is over, and stops.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from core.engine import measured
from core.simulator.runs.runner import requests_of, run_scenario, warm_up
from pools.models import Job, JobState
from scheduler.models import RunState, Study, StudyRun

from . import experiment_studies, run_series, scenario_documents
from .errors import BadStudy
from .scenario_documents import BAD
from .studies import files_of, spec_of, stop_runs

log = logging.getLogger(__name__)

REPORT_EVERY_S = 1.0
BEAT_S = 15.0
LOST_AFTER = timedelta(seconds=90)  # without a beat: six are missed
SEND_AGAIN = timedelta(minutes=10)
MOST_ATTEMPTS = 2
LIMIT_S = 6 * 3_600.0  # of a study


class Stopped(Exception):
    """Somebody asked for the study to be stopped, or another worker has it now."""


class TooLong(Exception):
    """The study used up its time."""


@dataclass
class StudyTurn:
    """A worker's turn with a study. Raises Stopped as soon as it is over."""

    study_id: int
    attempt: int
    began_s: float = field(default_factory=time.monotonic)
    reported_s: float = -REPORT_EVERY_S

    def report(self, run: StudyRun, share: float | None, simulated_s: float) -> None:
        """Stores the progress. The simulator calls it between two slices; it writes seldom more than once a second."""
        if time.monotonic() - self.reported_s < REPORT_EVERY_S:
            return
        self.reported_s = time.monotonic()
        if self.reported_s - self.began_s > LIMIT_S:
            raise TooLong
        self.check()
        StudyRun.objects.filter(pk=run.pk).update(progress=share, simulated_s=simulated_s)
        runs = list(StudyRun.objects.filter(study_id=self.study_id).values_list("state", flat=True))
        done = sum(state in (RunState.DONE, RunState.FAILED) for state in runs)
        Job.objects.filter(study__pk=self.study_id).update(progress=min(1.0, (done + (share or 0.0)) / len(runs)))

    def check(self) -> None:
        mine = Study.objects.filter(pk=self.study_id, attempts=self.attempt, job__state=JobState.RUNNING)
        if not mine.filter(job__cancel_requested=False).exists():
            raise Stopped
        mine.update(heard_at=timezone.now())


def run(study_id: int) -> bool:
    """Runs a study that is queued. What goes wrong stands on the run, or on the job. Returns whether it is done."""
    turn = _take(study_id)
    if turn is None:
        log.info("study %s is not queued: another worker has it, or it was cancelled", study_id)
        return False
    study = Study.objects.select_related("job").get(pk=study_id)
    state, error, result = JobState.DONE, "", None
    try:
        with _beating(turn), _knowledge(study.base):
            files = files_of(study)
            for own in study.runs.filter(state=RunState.QUEUED):
                _run(turn, study, own, files)
            if (experiment := experiment_studies.of(study.base)) is not None:
                result = experiment_studies.beside_runs(experiment, files)
    except Stopped:
        state = JobState.CANCELLED
    except TooLong:
        state, error = JobState.FAILED, f"stopped after {LIMIT_S / 3_600:g} h; make it smaller: fewer runs or requests"
    except Exception as failure:
        log.exception("study %s failed", study_id)
        state, error = JobState.FAILED, f"the study failed: {failure!r}; see the log of the worker for simulations"
    if state == JobState.DONE and not study.runs.filter(state=RunState.DONE).exists():
        state, error = JobState.FAILED, "none of its runs could be simulated; each says why"
    _finish(turn, state, error, result)
    return state == JobState.DONE


def _knowledge(base: str) -> AbstractContextManager[None]:
    """Sets aside what was measured while a paper's experiment runs: it comes out as published figures say."""
    return nullcontext() if experiment_studies.of(base) is None else measured.set_aside()


def mind(now: datetime, send: Callable[[Study], None]) -> int:
    """Looks after studies that nobody is heard of: to be queued again once, and then given up; never running for ever.

    Args:
        send: Gives a study to a worker.

    Returns:
        How many it did something about.
    """
    touched = 0
    ended = Study.objects.exclude(job__state__in=[JobState.QUEUED, JobState.RUNNING])
    for study in ended.filter(runs__state__in=[RunState.QUEUED, RunState.RUNNING]).distinct():
        stop_runs(study.pk, RunState.CANCELLED, now)  # its job was stopped on the page of jobs
    for study in Study.objects.filter(job__state=JobState.RUNNING, heard_at__lt=now - LOST_AFTER):
        touched += _lost(study, now, send)
    for study in Study.objects.filter(job__state=JobState.QUEUED, heard_at__lt=now - SEND_AGAIN):
        if Study.objects.filter(pk=study.pk, heard_at=study.heard_at).update(heard_at=now):
            send(study)  # the queue may have been lost; who has it already finds the study taken
            touched += 1
    return touched


def _lost(study: Study, now: datetime, send: Callable[[Study], None]) -> bool:
    with transaction.atomic():
        mine = Study.objects.select_for_update(of=("self",)).filter(pk=study.pk, heard_at=study.heard_at)
        job = Job.objects.select_for_update().get(pk=study.job_id)
        if not mine.exists() or job.state != JobState.RUNNING:
            return False
        again = study.attempts < MOST_ATTEMPTS and not job.cancel_requested
        if again:
            words = "its worker was lost; what was not finished is run again\n"
            job.state, job.log = JobState.QUEUED, job.log + words
            StudyRun.objects.filter(study=study, state=RunState.RUNNING).update(
                state=RunState.QUEUED, progress=None, simulated_s=0.0, started_at=None
            )
        else:
            cancelled = job.cancel_requested
            job.state, job.finished_at = JobState.CANCELLED if cancelled else JobState.FAILED, now
            lost = (
                ""
                if cancelled
                else (
                    f"its worker was lost {study.attempts} times, perhaps for want of memory: make it smaller "
                    "(fewer GPUs, requests or runs), and see `greenserve logs simulations`"
                )
            )
            job.error = lost
            stop_runs(study.pk, RunState.CANCELLED if cancelled else RunState.FAILED, now, lost)
        job.save(update_fields=["state", "log", "error", "finished_at"])
        mine.update(heard_at=now)
    log.warning("study %s: its worker was lost (attempt %d)", study.pk, study.attempts)
    if again:
        send(study)
    return True


@transaction.atomic
def _take(study_id: int) -> StudyTurn | None:
    now = timezone.now()
    queued = Job.objects.filter(study__pk=study_id, state=JobState.QUEUED)
    if not queued.update(state=JobState.RUNNING, started_at=now):
        return None
    Study.objects.filter(pk=study_id).update(attempts=F("attempts") + 1, heard_at=now)
    return StudyTurn(study_id, Study.objects.values_list("attempts", flat=True).get(pk=study_id))


@transaction.atomic
def _finish(turn: StudyTurn, state: str, error: str, result: dict[str, Any] | None) -> None:
    now = timezone.now()
    mine = Study.objects.filter(pk=turn.study_id, attempts=turn.attempt).values("job_id")
    done = {"progress": 1.0} if state == JobState.DONE else {}
    running = Job.objects.filter(pk__in=mine, state=JobState.RUNNING)
    if running.update(state=state, error=error, result=result, finished_at=now, **done):
        ended = RunState.CANCELLED if state == JobState.CANCELLED else RunState.FAILED
        stop_runs(turn.study_id, ended, now, error)


def _run(turn: StudyTurn, study: Study, own: StudyRun, files: scenario_documents.Files) -> None:
    turn.check()
    own.state, own.started_at = RunState.RUNNING, timezone.now()
    own.save(update_fields=["state", "started_at"])
    experiment = experiment_studies.of(study.base)

    def report(share: float | None, simulated_s: float) -> None:
        turn.report(own, share, simulated_s)

    try:
        if experiment is None:
            own.figures, own.series = _simulated(study, own, files, report)
        else:
            own.figures = experiment_studies.simulated(experiment, own.label, files, report)
        own.state, own.progress, own.simulated_s = RunState.DONE, 1.0, own.figures["simulated_s"]
    except (*BAD, BadStudy) as error:  # what the simulator says of bad input: this run's alone
        own.state, own.error = RunState.FAILED, str(error)
    own.finished_at = timezone.now()
    turn.check()
    own.save()


def _simulated(
    study: Study, own: StudyRun, files: scenario_documents.Files, report: experiment_studies.Progress
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and series of a run."""
    document = scenario_documents.for_run(study.scenario, spec_of(own))
    with scenario_documents.opened(document, files) as scenario:
        warm_up(scenario)
        requests = requests_of(scenario)
        span_s = run_series.span_s(scenario, requests)
        found = run_scenario(
            scenario,
            requests,
            on_progress=report,
            most_bin_s=max(1.0, span_s / run_series.POINTS),
            slice_s=max(1.0, min(600.0, span_s / run_series.SLICES)),
        )
    return found.figures | {"policy": own.label}, run_series.of(found)


@contextlib.contextmanager
def _beating(turn: StudyTurn) -> Iterator[None]:
    """Says in a thread that the worker is there: the simulator may compile or plan for minutes without a word."""
    over = threading.Event()

    def beat() -> None:
        try:
            while not over.wait(BEAT_S):
                with contextlib.suppress(Stopped):
                    turn.check()
        except Exception:
            log.exception("study %s: no beat", turn.study_id)
        finally:
            connection.close()

    thread = threading.Thread(target=beat, name=f"study-{turn.study_id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5.0)
