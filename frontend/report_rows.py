"""Reports as pages have them: their figures, their files, and whether they add up to the meters."""

from __future__ import annotations

import json
from typing import Any

from django.db.models import Count, OuterRef, Prefetch, QuerySet, Subquery
from django.db.models.functions import Coalesce

from pools.models import JobState
from telemetry.models import Report, ReportFile
from telemetry.reports import report_requests

SHOWN = 50
RECONCILIATION = "reconciliation"
INVOICE = "invoice-"  # and the tenant's name
COUNT = "invoice_count"
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


def with_files(reports: QuerySet[Report]) -> QuerySet[Report]:
    """Adds the job, the files but invoices, of which there may be a thousand, and how many invoices there are."""
    invoices = ReportFile.objects.filter(report=OuterRef("pk"), format__startswith=INVOICE).order_by()
    count = invoices.values("report").annotate(n=Count("pk")).values("n")
    others = Prefetch("files", ReportFile.objects.exclude(format__startswith=INVOICE))
    return reports.select_related("job").prefetch_related(others).annotate(**{COUNT: Coalesce(Subquery(count), 0)})


def rows(reports: QuerySet[Report]) -> list[dict[str, Any]]:
    """Returns the newest of these reports `with_files`. Makes two queries."""
    return [row(report) for report in reports.defer("basis", "changes")[:SHOWN]]


def row(report: Report) -> dict[str, Any]:
    """Returns a report `with_files` as tables have it."""
    summary = report.summary or {}
    job = report.job
    files = [(file.format, FORMAT_WORDS[file.format], file.sha256, file) for file in report.files.all()]
    return {
        "id": report.pk,
        "period": report.asked["period"],
        "zone": report.asked["zone"],
        "sites": ", ".join(report.asked["sites"]) or "all",
        "by": ", ".join(report.asked["by"]) or "nothing",
        "version": summary.get("version"),
        "provisional": summary.get("provisional", False),
        "energy_j": summary.get("energy_j"),
        "host_j": summary.get("host_j"),
        "without_host_j": summary.get("without_host_j"),
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
        "scope2": summary.get("scope2"),
        "signature": summary.get("signature"),
        "warnings": summary.get("warnings", ()),
        "files": files,
        "invoices": getattr(report, COUNT),
    }


def checks(report: Report) -> dict[str, Any] | None:
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
