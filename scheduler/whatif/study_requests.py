"""Takes up what people ask for: checks it and stores it with its job."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from pools.access.rights import AnyUser
from pools.models import Job, Slo
from scheduler.models import Study, StudyFile, StudyRun

from . import experiment_studies, scenario_changes, scenario_documents, study_drafts
from .errors import BadStudy
from .fleet_scenario import Draft
from .scenario_documents import BAD, RunSpec

JOB_KIND = "study"
MOST_RUNS = 24
FIELDS = {"name", "base", "scenario", "traffic", "changes", "runs"}


def ask(given: Mapping[str, Any], user: AnyUser, upload: bytes | None = None, now: datetime | None = None) -> Study:
    """Stores a study that a worker is to run (`tasks.send` gives it to one).

    Args:
        given: `name`; `base` (fleet, the name of a preset, study:ID, or lab:EXPERIMENT, which takes only a name and, in
            the place of its trace, traffic), or a `scenario` (mapping or YAML); `traffic`
            (`kind`: keep, past with `from`, `to` and `service`, generated with a workload's own fields, trace);
            `changes` (scenario_changes.Changes); `runs`, each as `scenario_documents.run_spec` takes it.
        upload: The trace of kind `trace`, plain or gzip.

    Raises:
        BadStudy: Says which field, and what would do.
    """
    now = now or timezone.now()
    if unknown := sorted(set(given) - FIELDS):
        raise BadStudy(unknown[0], f"unknown field; known: {', '.join(sorted(FIELDS))}")
    base = str(given.get("base") or ("" if given.get("scenario") else study_drafts.FLEET))[:120].replace("\0", "")
    name = str(given.get("name") or "").replace("\0", "").strip()[:120]
    if base.startswith(experiment_studies.HEAD):
        experiment, made = experiment_studies.asked(given, base, user, upload)
        return _stored(name or experiment.title[:120], base, made, experiment_studies.runs_of(experiment), user, now)
    runs = _runs(given.get("runs"))
    otherwise = scenario_changes.read(given.get("changes") or {})
    made = study_drafts.draft(given, base, user, upload, now)
    try:
        document, files = scenario_changes.put(made.document, made.files, otherwise)
    except BadStudy:
        raise
    except (*BAD, *scenario_documents.SHAPES) as error:
        raise BadStudy("scenario", f"cannot be changed: {error}") from None
    scenario_documents.check(document, files, runs)
    name = name or f"{base or 'scenario'}: {runs[0].title}"[:120]
    return _stored(name, base or "scenario", Draft(document, files, made.notes, made.currency), runs, user, now)


@transaction.atomic
def _stored(name: str, base: str, made: Draft, runs: Sequence[RunSpec], user: AnyUser, now: datetime) -> Study:
    creator = user if user.is_authenticated else None
    study = Study.objects.create(
        name=name,
        base=base[:120],
        scenario=made.document,
        notes=made.notes,
        currency=made.currency,
        target=_target(made.document),
        job=Job.objects.create(kind=JOB_KIND, parameters={"name": name, "base": base[:120]}, created_by=creator),
        heard_at=now,
        created_by=creator,
    )
    StudyFile.objects.bulk_create(
        StudyFile(study=study, name=key, data=zlib.compress(data)) for key, data in made.files.items()
    )
    StudyRun.objects.bulk_create(
        StudyRun(
            study=study,
            index=n,
            label=run.title[:200],
            policy=run.policy,
            knobs=dict(run.knobs),
            changes=list(run.changes),
        )
        for n, run in enumerate(runs)
    )
    return study


def _target(document: scenario_documents.Document) -> float:
    """Returns the highest share that the objectives of its services ask for; 99 % where none is a service of ours."""
    named = document.get("services")
    slos = Slo.objects.filter(service__name__in=list(named) if isinstance(named, Mapping) else [])
    highest: float | None = slos.aggregate(highest=Max("percentile"))["highest"]
    return 0.99 if highest is None else highest / 100.0


def _runs(given: object) -> list[RunSpec]:
    if not isinstance(given, (list, tuple)) or not given:
        raise BadStudy("runs", "name at least one policy")
    if len(given) > MOST_RUNS:
        raise BadStudy("runs", f"{len(given)} are more than {MOST_RUNS}: make two studies of them")
    runs = [scenario_documents.run_spec(item) for item in given]
    titles = [run.title for run in runs]
    if twice := next((title for title in titles if titles.count(title) > 1), None):
        raise BadStudy("runs", f"'{twice}' is there twice")
    return runs
