"""Jobs: every long piece of work with its progress, its log and its result; the button that stops it."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from frontend import reader_choices
from frontend.decisions import decision_facts
from pools.access import audit, rights
from pools.access.rights import AnyUser, Right
from pools.models import Job, JobState

OPEN = (JobState.QUEUED, JobState.RUNNING)
SORTS = {
    "created": "created_at",
    "kind": "kind",
    "state": "state",
    "started": "started_at",
    "finished": "finished_at",
}
PAGE = 50


@dataclass(frozen=True, slots=True)
class JobFilter:
    """The filter and order in the URL, restricted to values that exist."""

    state: str
    kind: str
    sort: str


@never_cache
@require_safe
def jobs(request: HttpRequest) -> HttpResponse:
    kinds = sorted(Job.objects.order_by().values_list("kind", flat=True).distinct())
    asked = _asked(request, kinds)
    found = Job.objects.select_related("created_by").defer("parameters", "result", "log")
    if asked.state:
        found = found.filter(state=asked.state)
    if asked.kind:
        found = found.filter(kind=asked.kind)
    downwards = "-" if asked.sort.startswith("-") else ""
    page = Paginator(found.order_by(f"{downwards}{SORTS[asked.sort.lstrip('-')]}", "-pk"), PAGE).get_page(
        request.GET.get("page")
    )
    context = {"page": page, "asked": asked, "kinds": kinds, "states": JobState.values, "sorts": SORTS}
    template = "frontend/fleet/parts/job_table.html" if request.GET.get("part") else "frontend/fleet/jobs.html"
    return render(request, template, context)


def _asked(request: HttpRequest, kinds: list[str]) -> JobFilter:
    state, kind, sort = (request.GET.get(name, "") for name in ("state", "kind", "sort"))
    return JobFilter(
        state if state in JobState.values else "",
        kind if kind in kinds else "",
        sort if sort.removeprefix("-") in SORTS else "-created",
    )


@never_cache
@require_safe
def job(request: HttpRequest, uid: str) -> HttpResponse:
    found = get_object_or_404(Job.objects.select_related("created_by"), uid=uid)
    context = {
        "job": found,
        "open": found.state in OPEN,
        "may_cancel": may_cancel(request.user, found),
        "parameters": decision_facts.readable(found.parameters, reader_choices.clock),
        "result": decision_facts.readable(found.result if isinstance(found.result, dict) else {}, reader_choices.clock),
    }
    template = "frontend/fleet/parts/job.html" if request.GET.get("part") else "frontend/fleet/job.html"
    return render(request, template, context)


def may_cancel(user: AnyUser, job: Job) -> bool:
    """Operators may stop any job, others their own."""
    return job.state in OPEN and (rights.has(user, Right.OPERATE) or job.created_by_id == user.pk)


@require_POST
def cancel(request: HttpRequest, uid: str) -> HttpResponse:
    """Stops a job: at once where no worker has it yet, else at its next step."""
    found = get_object_or_404(Job, uid=uid)
    if not may_cancel(request.user, found):
        if found.state in OPEN:
            rights.require(request.user, Right.OPERATE)
        messages.warning(request, "The job is over already.")
        return redirect("job", uid=uid)
    before = audit.values(found)
    queued = Job.objects.filter(pk=found.pk, state=JobState.QUEUED)
    if queued.update(state=JobState.CANCELLED, cancel_requested=True, finished_at=timezone.now()):
        messages.success(request, "The job is cancelled; nothing of it had begun.")
    else:
        Job.objects.filter(pk=found.pk, state=JobState.RUNNING).update(cancel_requested=True)
        messages.success(request, "The job has been asked to stop; it does so at its next step.")
    found.refresh_from_db()
    audit.record(audit.actor_of(request), "cancel", found, before, audit.values(found))
    return redirect("job", uid=uid)
