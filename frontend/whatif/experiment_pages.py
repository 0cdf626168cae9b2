"""The laboratory's experiments: the list of them, and the page that starts one as a study."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from core.simulator.lab.experiment import Experiment
from pools.access.rights import Right, has, needs
from pools.models import Service
from scheduler.models import Study
from scheduler.whatif import experiment_studies, studies, study_drafts, study_requests, tasks
from scheduler.whatif.errors import BadStudy

from . import study_cells
from .forms import ExperimentForm


@never_cache
@require_safe
@needs(Right.VIEW)
def experiments_page(request: HttpRequest) -> HttpResponse:
    mine = studies.visible(request.user).filter(base__startswith=experiment_studies.HEAD)
    latest = {study.base: study for study in mine.order_by("base", "-id").distinct("base").defer("scenario", "notes")}
    rows = [
        _row(own, latest.get(experiment_studies.HEAD + own.name)) for own in experiment_studies.catalogue().values()
    ]
    context = {"rows": rows, "operates": has(request.user, Right.OPERATE)}
    return render(request, "frontend/whatif/experiments.html", context)


def _row(own: Experiment, latest: Study | None) -> dict[str, Any]:
    paper, _, shows = own.title.rpartition(": ")
    return {
        "experiment": own,
        "paper": paper,
        "shows": shows,
        "trace": experiment_studies.trace_of(own),
        "latest": latest,
        "dot": "" if latest is None else study_cells.DOTS[latest.job.state],
    }


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@needs(Right.OPERATE)
def new_experiment(request: HttpRequest, name: str) -> HttpResponse:
    """Shows what an experiment runs and which figures were published; a POST starts it."""
    base = experiment_studies.HEAD + name
    experiment = experiment_studies.of(base)
    if experiment is None:
        raise Http404("no such experiment")
    names = list(Service.objects.order_by("name").values_list("name", flat=True))
    given = (request.POST, request.FILES) if request.method == "POST" else ()
    form = ExperimentForm(experiment.trace is not None, names, *given)
    if request.method == "POST" and form.is_valid():
        upload = form.cleaned_data["trace"]
        try:
            data = upload.read(study_drafts.MOST_TRACE_BYTES + 1) if upload else None
            made = study_requests.ask(form.asked(base), request.user, data)
        except BadStudy as error:
            form.take(error)
        else:
            tasks.send(made)
            return redirect("whatif-study", made.pk)
    context = {"experiment": experiment, "form": form, "trace": experiment_studies.trace_of(experiment)}
    return render(request, "frontend/whatif/experiment.html", context)
