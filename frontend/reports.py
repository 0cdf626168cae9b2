"""The page of reports: ask for one, see those that are made, download, sign."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from pools.models import Job, Site
from scheduler.api.reports import download
from telemetry.models import Report, ReportFile
from telemetry.reports import asking
from telemetry.reports.asked import FORMATS, SITE_ZONE, USUAL_FORMATS, USUAL_GROUPS
from telemetry.reports.errors import BadReport
from telemetry.reports.lines import DIMENSIONS
from telemetry.reports.period import last_period
from telemetry.reports.tasks import send

SHOWN = 50
FORMAT_WORDS = {
    "pdf": "PDF",
    "xlsx": "XLSX",
    "csv": "CSV",
    "focus-csv": "FOCUS CSV",
    "focus-parquet": "FOCUS Parquet",
    "reconciliation": "reconciliation",
}


@dataclass(frozen=True, slots=True)
class Form:
    """What stands in the form, and what is wrong with it by field: nothing that was typed is lost."""

    period: str
    zone: str = "UTC"
    site: str = ""
    by: tuple[str, ...] = USUAL_GROUPS
    formats: tuple[str, ...] = USUAL_FORMATS
    baseline: bool = False
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
        }


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def reports(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        form = Form.of(request.POST)
        try:
            report = asking.ask(form.asked(), request.user if isinstance(request.user, User) else None)
        except BadReport as error:
            return _page(request, Form.of(request.POST, {error.field: error.message}), status=400)
        send(report)
        return redirect("reports")
    if request.GET.get("part"):
        return render(request, "frontend/parts/reports.html", {"reports": _rows()})
    return _page(request, Form(period=last_period("monthly", timezone.get_current_timezone_name(), timezone.now())))


@never_cache
@require_safe
def report_file(request: HttpRequest, report_id: int, kind: str) -> FileResponse:
    found = ReportFile.objects.select_related("report").filter(report_id=report_id, format=kind).first()
    if found is None:
        raise Http404("no such file")
    return download(found)


@require_POST
def report_sign(request: HttpRequest, report_id: int) -> HttpResponseRedirect:
    asking.sign(get_object_or_404(Report, pk=report_id), request.user.get_username(), timezone.now())
    return redirect("reports")


@require_POST
def report_cancel(request: HttpRequest, report_id: int) -> HttpResponseRedirect:
    asking.cancel(get_object_or_404(Report, pk=report_id))
    return redirect("reports")


def _page(request: HttpRequest, form: Form, status: int = 200) -> HttpResponse:
    context = {
        "form": form,
        "sites": Site.objects.order_by("rank", "name"),
        "dimensions": DIMENSIONS,
        "formats": [(name, FORMAT_WORDS[name]) for name in FORMATS],
        "reports": _rows(),
    }
    return render(request, "frontend/reports.html", context, status=status)


def _rows() -> list[dict[str, Any]]:
    """The newest reports as the table has them. Two queries."""
    found = Report.objects.select_related("job").prefetch_related("files").defer("basis", "changes")
    return [_row(report) for report in found[:SHOWN]]


def _row(report: Report) -> dict[str, Any]:
    summary = report.summary or {}
    job = report.job
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
        "open": job.state in (Job.State.QUEUED, Job.State.RUNNING),
        "signable": job.state == Job.State.DONE and report.signed_at is None,
        "signed_by": report.signed_by,
        "signed_at": report.signed_at,
        "files": [(file.format, FORMAT_WORDS[file.format], file.sha256) for file in report.files.all()],
    }
