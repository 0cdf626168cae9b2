"""The pages of reports: ask for one, see those that are made and what one rests on, download, sign."""

from __future__ import annotations

from decimal import Decimal

from django.contrib import messages
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from frontend import formats, reader_choices, report_bill, report_form, report_rows
from frontend.api.resources.reports import download
from frontend.charts import value_figures
from frontend.fleet import chart_pages
from frontend.report_form import Form
from pools.access import audit, rights
from pools.access.rights import Right
from pools.models import JobState
from scheduler.operations import visibility
from telemetry.models import Report, ReportFile
from telemetry.report_values.errors import BadReport
from telemetry.report_values.esrs import table as esrs_table
from telemetry.report_values.lines import DIMENSIONS
from telemetry.report_values.period import last_period
from telemetry.report_values.report_request import FOCUS_VERSIONS, FORMATS
from telemetry.report_values.statement import NOBODYS
from telemetry.report_values.table import NAMES, Column
from telemetry.report_values.totals import Group
from telemetry.reports import report_pivots, report_requests
from telemetry.reports.tasks import send

CHANGES_SHOWN = 40
PIVOT_SHOWN = 500
CHARTS = ("energy", "carbon")
CHART_SOURCES = {
    "energy": "settled ledger, metered at the GPUs, without PUE; hatched: idle",
    "carbon": "settled ledger x PUE x grid average, location-based",
}


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def reports(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        rights.require(request.user, Right.FINANCE)
        form = Form.of(request.POST)
        if wrong := form.wrong_site(request.user):
            return _page(request, Form.of(request.POST, {"sites": wrong}), status=400)
        try:
            report = report_requests.ask(form.asked(), request.user if isinstance(request.user, User) else None)
        except BadReport as error:
            return _page(request, Form.of(request.POST, {error.field: error.message}), status=400)
        send(report)
        return redirect("reports")
    if request.GET.get("part"):
        return render(request, "frontend/parts/reports.html", {"reports": report_rows.rows(_visible(request))})
    return _page(request, Form(period=last_period("monthly", timezone.get_current_timezone_name(), timezone.now())))


@never_cache
@require_safe
def report(request: HttpRequest, report_id: int) -> HttpResponse:
    """Shows a report: its figures, their basis, the reconciliation, and what changed since the revision before."""
    found = get_object_or_404(_visible(request).select_related("revises"), pk=report_id)
    context = {
        "r": report_rows.row(found),
        "bill": report_bill.bill(found, request.GET),
        "report": found,
        "esrs": esrs_table.shown((found.summary or {}).get("esrs")),
        "inputs": report_requests.inputs(found),
        "checks": report_rows.checks(found),
        "changes": found.changes[:CHANGES_SHOWN],
        "more_changes": max(0, len(found.changes) - CHANGES_SHOWN),
        "newer": found.revised_by.filter(job__state=JobState.DONE).order_by("-revision").first(),
    }
    done = found.job.state == JobState.DONE
    if request.GET.get("part"):
        answer = render(request, "frontend/parts/report.html", context)
        if done:
            answer["HX-Refresh"] = "true"  # the page has its charts from now on, and the script that draws them
        return answer
    if done:
        context |= {"charts": CHARTS, "charts_url": reverse("report-figures", args=[report_id])}
    return render(request, "frontend/report.html", context)


@never_cache
@require_safe
def report_figures(request: HttpRequest, report_id: int) -> HttpResponse:
    """Draws the charts of a report's document, as its version has them."""
    found = get_object_or_404(_visible_with_basis(request), pk=report_id, job__state=JobState.DONE)
    look = reader_choices.look(request.GET)
    charts = report_pivots.charts(found)
    drawn = {
        name: (value_figures.stacked(chart, look, CHART_SOURCES[name]), value_figures.stacked_table(chart))
        for name, chart in charts.items()
    }
    return chart_pages.answer(request, f"report-{report_id}", {}, others=drawn, final=True)


@never_cache
@require_safe
def report_pivot(request: HttpRequest, report_id: int) -> HttpResponse:
    """Shows a report's lines by the rows and columns of the query, as its version has them."""
    found = get_object_or_404(_visible_with_basis(request), pk=report_id, job__state=JobState.DONE)
    by = tuple(name for name in report_pivots.ROWS if name in request.GET.getlist("rows"))
    shown = report_pivots.columns(by, request.GET.getlist("columns"))
    groups = report_pivots.rows(found, by)
    context = {
        "r": {"id": found.pk},
        "rows": [(name, name in by) for name in report_pivots.ROWS],
        "columns": [(column.name, column in shown) for column in report_pivots.columns(by, NAMES)],
        "by": by,
        "shown": shown,
        "groups": [
            (
                [part or NOBODYS[name] for name, part in zip(by, group.key, strict=True)],
                group.currency,
                [_cell(column, group) for column in shown],
            )
            for group in groups[:PIVOT_SHOWN]
        ],
        "totals": [
            (total.currency, [_cell(column, total) if column.sums else None for column in shown])
            for total in report_pivots.totals(groups)
        ],
        "more": max(0, len(groups) - PIVOT_SHOWN),
    }
    return render(request, "frontend/parts/report_pivot.html", context)


@never_cache
@require_safe
def report_file(request: HttpRequest, report_id: int, kind: str) -> FileResponse:
    seen = _visible(request).filter(pk=report_id)
    found = ReportFile.objects.select_related("report").filter(report__in=seen, format=kind).first()
    if found is None:
        raise Http404("no such file")
    return download(found)


@require_POST
@rights.needs(Right.FINANCE)
def report_sign(request: HttpRequest, report_id: int) -> HttpResponseRedirect:
    found = get_object_or_404(_visible(request), pk=report_id)
    if report_requests.sign(found, audit.actor_of(request), timezone.now()):
        messages.success(request, f"Signed by {request.user.get_username()}.")
    else:
        messages.error(request, "It is signed already, or not finished: nothing was changed.")
    return redirect("report", report_id)


@require_POST
@rights.needs(Right.FINANCE)
def report_cancel(request: HttpRequest, report_id: int) -> HttpResponseRedirect:
    if report_requests.cancel(get_object_or_404(_visible(request), pk=report_id)):
        messages.success(request, "The report stops at its next step.")
    else:
        messages.error(request, "It is finished: there is nothing to stop.")
    return redirect("report", report_id)


def _page(request: HttpRequest, form: Form, status: int = 200) -> HttpResponse:
    context = {
        "form": form,
        "sites": rights.sites_of(request.user).order_by("rank", "name"),
        "everywhere": rights.everywhere(request.user),
        "dimensions": DIMENSIONS,
        "formats": [(name, report_rows.FORMAT_WORDS[name]) for name in FORMATS],
        "bases": report_form.BASES_SHOWN,
        "matchings": report_form.MATCHINGS_SHOWN,
        "focus_versions": FOCUS_VERSIONS,
        "reports": report_rows.rows(_visible(request)),
    }
    return render(request, "frontend/reports.html", context, status=status)


def _visible(request: HttpRequest) -> QuerySet[Report]:
    """Returns the reports of sites that this person may see, as `report_rows` takes them."""
    return report_rows.with_files(visibility.for_sites(request.user, Report.objects.defer("basis")))


def _visible_with_basis(request: HttpRequest) -> QuerySet[Report]:
    return visibility.for_sites(request.user, Report.objects.all())


def _cell(column: Column, group: Group) -> tuple[str, str]:
    """Returns a cell as people read it, and exactly as the report's CSV has it."""
    exact = column.cell(group)
    return (formats.UNKNOWN, "not known") if exact is None else (f"{Decimal(exact):,.{column.places}f}", exact)
