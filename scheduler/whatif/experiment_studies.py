"""The laboratory's experiments as studies: taken as they are, and run and kept as `greenserve lab` does.

What one of the two has run, the other finds in the folder of figures.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.conf import settings

from core.simulator.lab.comparison import Compared, compared
from core.simulator.lab.experiment import Experiment, Table
from core.simulator.lab.measures import CALCULATED
from core.simulator.lab.runs import Given, bound_of, calculated_of, job_of
from core.simulator.lab.store import Store
from core.simulator.workload.public_traces import PUBLIC_TRACES, PublicTrace
from pools.access.rights import AnyUser
from scheduler.models import Study

from . import scenario_documents, shipped_scenarios, study_drafts
from .errors import BadStudy
from .fleet_scenario import Draft
from .scenario_documents import Files, RunSpec

log = logging.getLogger(__name__)

HEAD = "lab:"  # of the base of a study that is an experiment
OWN = ("scenario", "changes", "runs")  # what an experiment has, and who asks for it cannot give
KINDS: Mapping[str, frozenset[str]] = {  # of requests in the place of its trace, and what may be said of them
    "trace": frozenset(),
    "past": frozenset({"from", "to", "service"}),
    "generated": frozenset(),
}

Progress = Callable[[float | None, float], None]


def catalogue() -> Mapping[str, Experiment]:
    """Returns all experiments by name. They are loaded when first asked for, since few pages are about them."""
    from core.simulator.lab.experiments import EXPERIMENTS

    return EXPERIMENTS


def of(base: str) -> Experiment | None:
    """Returns the experiment that a study's base names; None: none, or one that is no longer there."""
    return catalogue().get(base.removeprefix(HEAD)) if base.startswith(HEAD) else None


def asked(given: Mapping[str, Any], base: str, user: AnyUser, upload: bytes | None) -> tuple[Experiment, Draft]:
    """Returns the experiment with its requests. Raises BadStudy."""
    experiment = of(base)
    if experiment is None:
        known = ", ".join(catalogue())
        raise BadStudy("base", f"there is no experiment '{base.removeprefix(HEAD)}'; there are: {known}")
    for name in OWN:
        if given.get(name):
            words = f"{base} has its own; leave it out, or make a study of the scenario {experiment.scenario}"
            raise BadStudy(name, words)
    made = Draft(
        shipped_scenarios.load(experiment.scenario), notes=[experiment.stands_in] if experiment.stands_in else []
    )
    _put_requests(made, experiment, study_drafts.wanted(given, upload), user, upload)
    first = runs_of(experiment)[:1]  # the others differ by nothing that is given
    scenario_documents.check(made.document, made.files, first)
    return experiment, made


def runs_of(experiment: Experiment) -> list[RunSpec]:
    return [
        replace(scenario_documents.run_spec(run.policy), changes=run.settings, label=run.label[:200])
        for run in experiment.runs
    ]


def trace_of(experiment: Experiment) -> PublicTrace | None:
    """Returns the trace that it runs on, which a person must supply."""
    return None if experiment.trace is None else PUBLIC_TRACES[experiment.trace]


def _put_requests(
    made: Draft, experiment: Experiment, wanted: Mapping[str, Any], user: AnyUser, upload: bytes | None
) -> None:
    kind, public = wanted["kind"], trace_of(experiment)
    if public is None:
        if kind != "keep":
            raise BadStudy("traffic.kind", f"{HEAD}{experiment.name} has its own requests; leave traffic out")
        return
    if kind not in KINDS:
        raise BadStudy(
            "traffic.kind",
            f"{HEAD}{experiment.name} runs on {public.title}, which does not come with the product ({public.url}; "
            f"{public.licence}): send it (kind trace), or let others take its place, recorded ones (kind past, with "
            "from and to) or those that the scenario generates (kind generated)",
        )
    if strange := sorted(set(wanted) - {"kind", *KINDS[kind]}):
        known = ", ".join(["kind", *sorted(KINDS[kind])])
        raise BadStudy(f"traffic.{strange[0]}", f"an experiment does not take it; known: {known}")
    scale = made.document["workload"].get("rate_scale", 1)
    more = f" They come {scale:g} times as fast, as the scenario says." if scale != 1 else ""
    instead = f"in the place of {public.title}: what is published is not of these requests.{more}"
    if kind == "generated":
        made.notes.append(f"Requests: those that the scenario generates, {instead}")
        return
    if kind == "trace":
        data = study_drafts.plain_trace(upload or b"")
        own = hashlib.sha256(data).hexdigest() == public.sha256
        made.notes.append(f"Requests: {public.title}, as published." if own else f"Requests: a trace {instead}")
    else:
        data, words = study_drafts.recorded(wanted, user)
        made.notes.append(f"Requests: {words} {instead[0].upper()}{instead[1:]}")
    made.files[study_drafts.TRACE] = data
    made.document["workload"]["trace"] = study_drafts.TRACE


def simulated(experiment: Experiment, label: str, files: Files, progress: Progress) -> dict[str, Any]:
    """Returns figures of one of its runs: those that are stored, or new ones.

    Raises what the simulator does, and BadStudy.
    """
    run = next((run for run in experiment.runs if run.label[:200] == label), None)
    if run is None:
        raise BadStudy("base", f"{HEAD}{experiment.name} has no run '{label}' any more; start it again")
    store = Store(settings.GREENSERVE_LAB_DIR)
    with _trace(files) as trace:
        job = job_of(experiment, run, Given(trace))
        figures = store.find(job)
        if figures is None:
            figures = job.run(progress)
            try:
                store.keep(job, figures)
            except OSError as error:
                log.warning("figures of %s, %s cannot be kept: %s", experiment.name, label, error)
    return figures


def beside_runs(experiment: Experiment, files: Files) -> dict[str, Any]:
    """Returns what no run has, as the study's job keeps it: the bound, None where the experiment has none,
    and the figures that are calculated, which take seconds."""
    with _trace(files) as trace:
        found = bound_of(experiment, Given(trace))
    bound = None if found is None else {"energy_wh": found.energy_wh, "gpu_hours": found.gpu_hours}
    return {"bound": bound, CALCULATED: calculated_of(experiment)}


@contextmanager
def _trace(files: Files) -> Iterator[Path | None]:
    """Yields the study's trace on disk for as long as it is used."""
    data = files.get(study_drafts.TRACE)
    if data is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="greenserve-study-") as folder:
        path = Path(folder) / study_drafts.TRACE
        path.write_bytes(data)
        yield path


def published(study: Study) -> list[Compared]:
    """Returns published figures beside simulated ones, as far as the study is; none: it is no experiment."""
    experiment = of(study.base)
    if experiment is None:
        return []
    calculated = (study.job.result or {}).get(CALCULATED, {})
    return compared(experiment, {**_results(study), CALCULATED: calculated})


def table(study: Study) -> Table | None:
    """Returns what the experiment shows of all its runs together; None: nothing, or not all of them are done."""
    experiment, results = of(study.base), _results(study)
    if experiment is None or experiment.table is None or any(run.label not in results for run in experiment.runs):
        return None
    return experiment.table(results)


def _results(study: Study) -> dict[str, dict[str, Any]]:
    return {run.label: run.figures for run in study.runs.all() if run.figures is not None}


def result(study: Study) -> dict[str, Any] | None:
    """Returns the same as JSON, and the bound; None: it is no experiment."""
    experiment = of(study.base)
    if experiment is None:
        return None
    return {
        "name": experiment.name,
        "title": experiment.title,
        "published": [own.as_json() for own in published(study)],
        "bound": (study.job.result or {}).get("bound"),
    }
