"""The pages of reports: ask for one, see those that are made and what one rests on, download, sign."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from django.contrib import messages
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from frontend import formats, reader_choices
from frontend.api.resources.reports import download
from frontend.charts import value_figures
from frontend.fleet import chart_pages
from pools.access import audit, rights
from pools.access.rights import Right
from pools.models import JobState
from scheduler.operations import visibility
from telemetry.models import Report, ReportFile
from telemetry.report_values.errors import BadReport
from telemetry.report_values.esrs import table as esrs_table
from telemetry.report_values.lines import DIMENSIONS
from telemetry.report_values.market import HOURLY, PERIOD
from telemetry.report_values.period import last_period
from telemetry.report_values.report_request import (
    FOCUS_VERSIONS,
    FORMATS,
    NEWEST_FOCUS,
    NO_BILL,
    SITE_ZONE,
    USUAL_BASIS,
    USUAL_FORMATS,
    USUAL_GROUPS,
)
from telemetry.report_values.table import NAMES, Column
from telemetry.report_values.totals import Group
from telemetry.reports import report_pivots, report_requests
from telemetry.reports.tasks import send

SHOWN = 50
CHANGES_SHOWN = 40
PIVOT_SHOWN = 500
RECONCILIATION = "reconciliation"
CHARTS = ("energy", "carbon")
CHART_SOURCES = {
    "energy": "settled ledger, metered at the GPUs, without PUE; hatched: idle",
    "carbon": "settled ledger x PUE x grid average, location-based",
}
FORMAT_WORDS = {
    "pdf": "PDF",
    "xlsx": "XLSX",
    "csv": "CSV",
    "focus-csv": "FOCUS CSV",
    "focus-parquet": "FOCUS Parquet",
    "reconciliation": "reconciliation",
    "bill-csv": "bill CSV",
    "invoices": "invoices (PDF, one for each tenant)",
    "scope2-csv": "Scope 2 by the hour (CSV)",
    "esrs-csv": "ESRS E1-5 and E1-6 (CSV)",
}
INVOICE = "invoice-"
MATCHINGS_SHOWN = ((HOURLY, "by the hour"), (PERIOD, "over the period"))
BASES_SHOWN = (
    ("usage", "by usage"),
    ("allocation", "by allocation"),
    ("marginal", "by marginal cost"),
    (NO_BILL, "no bill"),
)


@dataclass(frozen=True, slots=True)
class Form:
    """What stands in the form, and what is wrong with it by field: nothing that was typed is lost."""

    period: str
    zone: str = "UTC"
    site: str = ""
    by: tuple[str, ...] = USUAL_GROUPS
    formats: tuple[str, ...] = USUAL_FORMATS
    baseline: bool = False
    basis: str = USUAL_BASIS
    matching: str = HOURLY
    focus_version: str = NEWEST_FOCUS
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: QueryDict, errors: dict[str, str] | None = None) -> Form:
        return cls(
            period=given.get("period", "").strip()[:40],
            zone=SITE_ZONE if given.get("zone") == SITE_ZONE else "UTC",
            site=given.get("site", "")[:100],
            by=tuple(given.getlist("by")),
            formats=tuple(given.getlist("formats")),
            baseline="baseline" in given,
            basis=given.get("basis", USUAL_BASIS)[:20],
            matching=given.get("matching", HOURLY)[:20],
            focus_version=given.get("focus_version", NEWEST_FOCUS)[:20],
            errors=errors or {},
        )

    def asked(self) -> dict[str, Any]:
        return {
            "period": self.period,
            "zone": self.zone,
            "sites": [self.site] if self.site else [],
            "by": list(self.by),
            "formats": list(self.formats),
            "baseline": self.baseline,
            "basis": self.basis,
            "matching": self.matching,
            "focus_version": self.focus_version,
        }


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def reports(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        rights.require(request.user, Right.FINANCE)
        form = Form.of(request.POST)
        if wrong := _wrong_site(request, form):
            return _page(request, Form.of(request.POST, {"sites": wrong}), status=400)
        try:
            report = report_requests.ask(form.asked(), request.user if isinstance(request.user, User) else None)
        except BadReport as error:
            return _page(request, Form.of(request.POST, {error.field: error.message}), status=400)
        send(report)
        return redirect("reports")
    if request.GET.get("part"):
        return render(request, "frontend/parts/reports.html", {"reports": _rows(request)})
    return _page(request, Form(period=last_period("monthly", timezone.get_current_timezone_name(), timezone.now())))


@never_cache
@require_safe
def report(request: HttpRequest, report_id: int) -> HttpResponse:
    """Shows a report: its figures, their basis, the reconciliation, and what changed since the revision before."""
    found = get_object_or_404(_visible(request).select_related("revises"), pk=report_id)
    context = {
        "r": _row(found),
        "report": found,
        "esrs": esrs_table.shown((found.summary or {}).get("esrs")),
        "inputs": report_requests.inputs(found),
        "checks": _checks(found),
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
            ([part or "(nobody)" for part in group.key], group.currency, [_cell(column, group) for column in shown])
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
        "formats": [(name, FORMAT_WORDS[name]) for name in FORMATS],
        "bases": BASES_SHOWN,
        "matchings": MATCHINGS_SHOWN,
        "focus_versions": FOCUS_VERSIONS,
        "reports": _rows(request),
    }
    return render(request, "frontend/reports.html", context, status=status)


def _wrong_site(request: HttpRequest, form: Form) -> str | None:
    """Says what is wrong with the form's site if the person's role is not for it; None: nothing."""
    if rights.everywhere(request.user):
        return None
    own = list(rights.sites_of(request.user).values_list("name", flat=True))
    return None if form.site in own else f"your role is for {', '.join(own) or 'no site'}: choose one of these"


def _visible(request: HttpRequest) -> QuerySet[Report]:
    """Returns the reports of sites that this person may see."""
    return visibility.for_sites(
        request.user, Report.objects.select_related("job").prefetch_related("files").defer("basis")
    )


def _visible_with_basis(request: HttpRequest) -> QuerySet[Report]:
    return visibility.for_sites(request.user, Report.objects.all())


def _cell(column: Column, group: Group) -> tuple[str, str]:
    """Returns a cell as people read it, and exactly as the report's CSV has it."""
    exact = column.cell(group)
    return (formats.UNKNOWN, "not known") if exact is None else (f"{Decimal(exact):,.{column.places}f}", exact)


def _rows(request: HttpRequest) -> list[dict[str, Any]]:
    """Returns the newest reports as the table has them. Makes two queries."""
    return [_row(report) for report in _visible(request).defer("basis", "changes")[:SHOWN]]


def _checks(report: Report) -> dict[str, Any] | None:
    """Returns the reconciliation for the page; None where its file does not exist."""
    file = next((file for file in report.files.all() if file.format == RECONCILIATION), None)
    if file is None:
        return None
    try:
        found = json.loads(report_requests.path_of(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    off = [meter for meter in found["meters"] if meter["difference_j"] != "0"]
    return {
        "adds_up": found["adds_up"],
        "meters": len(found["meters"]),
        "off": off[:SHOWN],
        "sites": found["sites"],
        "exports": [export for export in found["exports"] if "adds_up" in export],
        "total_j": found["total"]["meters_j"],
    }


def _file_words(file: ReportFile) -> str:
    tenant = file.format.removeprefix(INVOICE)
    return FORMAT_WORDS[file.format] if tenant == file.format else f"invoice of {tenant}"


def _row(report: Report) -> dict[str, Any]:
    summary = report.summary or {}
    job = report.job
    files = [(file.format, _file_words(file), file.sha256, file) for file in report.files.all()]
    listed = [row for row in files if not row[0].startswith(INVOICE)]
    return {
        "id": report.pk,
        "period": report.asked["period"],
        "zone": report.asked["zone"],
        "sites": ", ".join(report.asked["sites"]) or "all",
        "by": ", ".join(report.asked["by"]) or "nothing",
        "version": summary.get("version"),
        "provisional": summary.get("provisional", False),
        "energy_j": summary.get("energy_j"),
        "location_g": summary.get("location_gco2e"),
        "market_g": summary.get("market_gco2e"),
        "cost": list((summary.get("cost") or {}).items()),
        "state": job.state,
        "progress": job.progress,
        "error": job.error,
        "open": job.state in (JobState.QUEUED, JobState.RUNNING),
        "signable": job.state == JobState.DONE and report.signed_at is None,
        "signed_by": report.signed_by,
        "signed_at": report.signed_at,
        "bill": summary.get("bill"),
        "scope2": summary.get("scope2"),
        "signature": summary.get("signature"),
        "warnings": summary.get("warnings", ()),
        "files": files,
        "listed": listed,
        "invoices": len(files) - len(listed),
    }
