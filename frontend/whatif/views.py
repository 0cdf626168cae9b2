"""The list of studies, the form of a new one, and what is done with them: cancel, apply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Prefetch
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from frontend.configure import confirmations
from pools.access.audit import actor_of
from pools.access.rights import Right, needs
from pools.models import Service
from scheduler.models import Study, StudyRun
from scheduler.operations.configure import consequences
from scheduler.whatif import applying, shipped_scenarios, studies, study_drafts, study_requests, tasks
from scheduler.whatif.errors import BadStudy
from scheduler.whatif.scenario_documents import Document, RunSpec

from . import study_cells
from .forms import StudyForm

PAGE = 50


@never_cache
@require_safe
@needs(Right.VIEW)
def studies_page(request: HttpRequest) -> HttpResponse:
    labels = Prefetch("runs", StudyRun.objects.only("study_id", "index", "label"))
    found = studies.visible(request.user).prefetch_related(labels).defer("scenario", "notes")
    page = Paginator(found, PAGE).get_page(request.GET.get("page"))
    rows = [study_cells.row(study) for study in page.object_list]
    context = {"page": page, "studies": rows, "open": any(row["open"] for row in rows)}
    part = "frontend/whatif/rows.html" if request.GET.get("part") else "frontend/whatif/list.html"
    return render(request, part, context)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@needs(Right.OPERATE)
def new_study(request: HttpRequest) -> HttpResponse:
    base = request.POST.get("base") or request.GET.get("base") or study_drafts.FLEET
    try:
        document, notes, ticked = _base(request, base[:120])
    except BadStudy as error:
        context = {"base": base, "presets": shipped_scenarios.available(), "trouble": error.message}
        return render(request, "frontend/whatif/new.html", context)
    services = list(Service.objects.order_by("name"))
    if request.method != "POST":
        return _form_page(request, StudyForm(base, document, services, initial=ticked), notes)
    form = StudyForm(base, document, services, request.POST, request.FILES)
    if not form.is_valid():
        return _form_page(request, form, notes)
    upload = form.cleaned_data["trace"]
    try:
        made = study_requests.ask(
            form.asked(), request.user, upload.read(study_drafts.MOST_TRACE_BYTES + 1) if upload else None
        )
    except BadStudy as error:
        form.take(error)
        return _form_page(request, form, notes)
    tasks.send(made)
    return redirect("whatif-study", made.pk)


def _base(request: HttpRequest, base: str) -> tuple[Document, list[str], dict[str, Any]]:
    """The scenario that the form's fields follow, what is to be said of it, and what is filled in beforehand.

    After an error the text that was typed is the scenario, if it can be read: else the base's own.
    """
    if base == study_drafts.FLEET:
        made = study_drafts.draft_of_fleet(request.user, timezone.now())
        return made.document, made.notes, _in_force() | {"run.single_pool": True, "run.freesh": True}
    typed = request.POST.get("scenario")
    try:
        made = study_drafts.draft_of({"scenario": typed} if typed else {}, base, request.user)
    except BadStudy:
        if not typed:
            raise
        made = study_drafts.draft_of({}, base, request.user)
    own = made.document.get("policy", "single_pool")
    name = own.get("name") if isinstance(own, dict) else own
    ticked = _in_force() | {"run.single_pool": True, f"run.{name}": True}
    if base.startswith("study:"):
        before = studies.visible(request.user).get(pk=int(base.removeprefix("study:")))
        ticked = {"name": f"{before.name}, changed"[:120]}
        specs = [replace(studies.spec_of(run), label="") for run in before.runs.all()]
        ticked["more_runs"] = "\n".join(spec.title for spec in specs)
    return made.document, made.notes, ticked


def _in_force() -> dict[str, Any]:
    """Returns the fields of what services run now, so that each study compares with it, and of what advises beside it.

    A policy's second set of knobs is one more run.
    """
    ticked: dict[str, Any] = {}
    more: dict[str, None] = {}
    services = list(Service.objects.order_by("name"))
    for policy in (*(own.own_policy() for own in services), *(own.configured_policy() for own in services)):
        run = RunSpec(policy.name, policy.overrides)
        knobs = run.line.removeprefix(policy.name).strip(" {}")
        if f"run.{run.policy}" not in ticked:
            ticked |= {f"run.{run.policy}": True, f"knobs.{run.policy}": knobs}
        elif ticked[f"knobs.{run.policy}"] != knobs:
            more[run.line] = None
    return ticked | ({"more_runs": "\n".join(more)} if more else {})


def _form_page(request: HttpRequest, form: StudyForm, notes: list[str]) -> HttpResponse:
    context = {"form": form, "base": form.base, "presets": shipped_scenarios.available(), "notes": notes}
    context["about"] = next((preset.about for preset in shipped_scenarios.available() if preset.name == form.base), "")
    return render(request, "frontend/whatif/new.html", context)


@require_POST
@needs(Right.OPERATE)
def cancel_study(request: HttpRequest, study_id: int) -> HttpResponseRedirect:
    study = get_object_or_404(studies.visible(request.user), pk=study_id)
    if not studies.cancel(study):
        messages.warning(request, "It is finished already.")
    return redirect("whatif-study", study.pk)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@needs(Right.OPERATE)
def apply_run(request: HttpRequest, study_id: int, index: int) -> HttpResponse:
    """Asks whether a run's policy is to be a service's, and says what follows; a POST does it."""
    run = done_run(request, study_id, index)
    given = request.POST if request.method == "POST" else request.GET
    service = get_object_or_404(Service, name=given.get("service", ""))
    advise = request.method != "POST" or given.get("mode", "advise") == "advise"
    trouble = ""
    try:
        found = applying.of(run)
        if request.method == "POST":
            actor, back = actor_of(request), reverse("whatif-run", args=[study_id, index])
            title = f"Apply {found.policy} to {service}?"
            page = confirmations.asked(
                request, [service], lambda: applying.apply(actor, run, service, advise), title, back
            )
            if page is not None:
                return page
            service.refresh_from_db()
            applying.apply(actor, run, service, advise)
            how = consequences.taken_up(service)
            messages.success(request, f"{service.name} has the policy {found.policy} now. {how}")
            return redirect("whatif-run", study_id, index)
    except BadStudy as error:
        found, trouble = None, error.message
    context: dict[str, Any] = {"run": run, "study": run.study, "service": service, "found": found, "trouble": trouble}
    if found is not None:
        context["now"] = RunSpec(service.policy, service.knobs).line
        context["then"] = RunSpec(found.policy, found.knobs).line
        service.policy, service.knobs = found.policy, dict(found.knobs)
        context["consequences"] = consequences.of(service)
    return render(request, "frontend/whatif/apply.html", context)


def done_run(request: HttpRequest, study_id: int, index: int) -> StudyRun:
    """Returns a run with its study, if this person may see it."""
    visible = studies.visible(request.user).filter(pk=study_id)
    run = StudyRun.objects.select_related("study__job").filter(study__in=visible, index=index).first()
    if run is None:
        raise Http404("no such run")
    return run


def visible_study(request: HttpRequest, study_id: int) -> Study:
    found: Study = get_object_or_404(studies.visible(request.user), pk=study_id)
    return found
