"""Pages of one study and of its runs, their figures and downloads."""

from __future__ import annotations

import json
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.text import slugify
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from frontend import reader_choices
from pools.access.rights import Right, has, needs
from pools.models import Service, Site
from scheduler.models import RunState, StudyRun
from scheduler.whatif import comparing, experiment_studies, scenario_documents, studies

from . import plots, study_cells
from .views import done_run, visible_study

CHARTS = ("pareto", "ratios", "power", "carbon")
EXPERIMENT_CHARTS = ("energy", "pareto")  # an experiment's runs keep no series
OPEN_REFRESH_S, DONE_REFRESH_S = 2.5, 600.0


@never_cache
@require_safe
@needs(Right.VIEW)
def study(request: HttpRequest, study_id: int) -> HttpResponse:
    found = visible_study(request, study_id)
    experiment, runs = experiment_studies.of(found.base), list(found.runs.defer("series"))
    listed = study_cells.listed(experiment, runs)
    against = request.GET.get("against", "energy")
    context: dict[str, Any] = {
        "study": found,
        "job": found.job,
        "open": found.job.state in study_cells.OPEN,
        "dot": study_cells.DOTS[found.job.state],
        "figures": comparing.FIGURES[: study_cells.COLUMNS],
        "rows": study_cells.run_rows(found, listed),
        "unlisted": len(runs) - len(listed),
        "published": study_cells.published(experiment_studies.published(found)),
        "table": experiment_studies.table(found),
        "against": against if against in comparing.AGAINST else "energy",
        "axes": [(key, figure.label) for key, figure in comparing.AGAINST.items()],
    }
    if request.GET.get("part"):
        return render(request, "frontend/whatif/runs.html", context)
    context |= {
        "experiment": experiment,
        "charts": CHARTS if experiment is None else EXPERIMENT_CHARTS,
        "charts_url": reverse("whatif-figures", args=(found.pk,)),
        "empty_template": "frontend/whatif/no_chart.html",
        "files": list(found.files.values_list("name", flat=True)),
        "operates": has(request.user, Right.OPERATE),
    }
    return render(request, "frontend/whatif/study.html", context)


@never_cache
@require_safe
@needs(Right.VIEW)
def study_figures(request: HttpRequest, study_id: int) -> HttpResponse:
    found = visible_study(request, study_id)
    experiment, all_runs = experiment_studies.of(found.base), list(found.runs.all())
    wanted = request.GET.get("csv")
    if wanted is not None:
        if wanted in plots.UNITS:
            lines = plots.totals(study_cells.shown(found, all_runs), wanted)
            return _csv(f"study-{found.pk}-{wanted}", plots.table(lines, plots.UNITS[wanted]))
        return _csv(f"study-{found.pk}", comparing.as_csv(study_cells.triples(all_runs), found.currency, found.target))
    look, against = reader_choices.look(request.GET), request.GET.get("against", "energy")
    runs = study_cells.shown(found, study_cells.listed(experiment, all_runs))
    against = against if against in comparing.AGAINST else "energy"
    figures = {"pareto": plots.pareto(runs, against, found.currency, found.target, look)}
    if experiment is None:
        figures |= {"ratios": plots.ratios(runs, look)}
        figures |= {chart: plots.over_time(runs, chart, look) for chart in plots.UNITS}
    else:
        bound = (found.job.result or {}).get("bound") or {}
        figures["energy"] = plots.energy(runs, bound.get("energy_wh"), look)
    refresh_s = OPEN_REFRESH_S if found.job.state in study_cells.OPEN else DONE_REFRESH_S
    return _figures(figures, refresh_s)


@never_cache
@require_safe
@needs(Right.VIEW)
def comparison(request: HttpRequest, study_id: int, kind: str) -> HttpResponse:
    found = visible_study(request, study_id)
    runs = study_cells.triples(list(found.runs.defer("series")))
    name = f"study-{found.pk}-{slugify(found.name)[:40] or 'comparison'}"
    if kind == "csv":
        return _csv(name, comparing.as_csv(runs, found.currency, found.target))
    if kind != "json":
        raise Http404("csv or json")
    body = {"study": found.pk, "name": found.name, **comparing.as_json(runs, found.currency, found.target)}
    return _download(f"{name}.json", json.dumps(body, indent=2, allow_nan=False), "application/json")


@never_cache
@require_safe
@needs(Right.VIEW)
def study_file(request: HttpRequest, study_id: int, name: str) -> HttpResponse:
    files = studies.files_of(visible_study(request, study_id))
    if name not in files:
        raise Http404("no such file")
    return _download(name, files[name], "text/csv; charset=utf-8")


@never_cache
@require_safe
@needs(Right.VIEW)
def run(request: HttpRequest, study_id: int, index: int) -> HttpResponse:
    found = done_run(request, study_id, index)
    done = found.state == RunState.DONE
    context: dict[str, Any] = {
        "run": found,
        "study": found.study,
        "done": done,
        "row": study_cells.run_rows(found.study, [found])[0],
        "figures": study_cells.figures_of(found, found.study.currency) if done else [],
        "attainments": study_cells.attainments(found),
        "decisions": study_cells.decisions(found),
        "sites": ((found.figures or {}).get("by_site") or {}).items(),
        "scenario": scenario_documents.text_of(_scenario(found)),
        "charts": ("power", "carbon") if found.series else (),
        "charts_url": reverse("whatif-run-figures", args=(found.study_id, found.index)),
        "empty_template": "frontend/whatif/no_chart.html",
        "services": Service.objects.order_by("name") if has(request.user, Right.OPERATE) else [],
    }
    return render(request, "frontend/whatif/run.html", context)


@never_cache
@require_safe
@needs(Right.VIEW)
def run_figures(request: HttpRequest, study_id: int, index: int) -> HttpResponse:
    found = done_run(request, study_id, index)
    own = plots.Shown(found.index, found.label, found.figures or {}, found.series or {}, "")
    wanted = request.GET.get("csv")
    if wanted is not None:
        if wanted not in plots.UNITS:
            raise Http404("no such chart")
        lines = plots.site_lines(own, wanted)
        return _csv(f"run-{found.study_id}-{found.index}-{wanted}", plots.table(lines, plots.UNITS[wanted]))
    look = reader_choices.look(request.GET)
    places = dict(Site.objects.values_list("name", "colour"))
    return _figures({chart: plots.by_site(own, chart, places, look) for chart in plots.UNITS}, DONE_REFRESH_S)


@never_cache
@require_safe
@needs(Right.VIEW)
def run_scenario(request: HttpRequest, study_id: int, index: int) -> HttpResponse:
    found = done_run(request, study_id, index)
    name = f"{slugify(found.study.name)[:40] or 'study'}-{slugify(found.label)[:40] or found.index}.yaml"
    return _download(name, scenario_documents.text_of(_scenario(found)), "application/yaml")


def _scenario(found: StudyRun) -> scenario_documents.Document:
    try:
        return scenario_documents.for_run(found.study.scenario, studies.spec_of(found))
    except ValueError:  # a field that cannot be set: the run failed for it
        return dict(found.study.scenario)


def _figures(figures: dict[str, Any], refresh_s: float) -> JsonResponse:
    body = {"refresh_s": refresh_s, "figures": figures}
    return JsonResponse(body, json_dumps_params={"allow_nan": False, "separators": (",", ":")})


def _csv(name: str, text: str) -> HttpResponse:
    return _download(f"greenserve-{name}.csv", text, "text/csv; charset=utf-8")


def _download(name: str, body: str | bytes, kind: str) -> HttpResponse:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(body, content_type=kind, headers=headers)
