"""A report's bill on its page: some tenants at a time, with their invoices."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.http import QueryDict

from frontend.report_rows import INVOICE
from telemetry.models import Report, ReportFile

PAGE = 50
OPERATOR = "(operator)"


def bill(report: Report, asked: QueryDict) -> dict[str, Any] | None:
    """Returns the bill's rows of the tenants whose names have `tenant` in them, those of page `bill`; None: no bill.

    Makes one query, for the invoices of these tenants.
    """
    found = (report.summary or {}).get("bill")
    if not found:
        return None
    text = asked.get("tenant", "").strip()[:100]
    named = [(row["tenant"] or OPERATOR, row) for row in found["tenants"]]
    matching = [(name, row) for name, row in named if text.lower() in name.lower()]
    page = Paginator(matching, PAGE).get_page(asked.get("bill"))
    files = ReportFile.objects.filter(report=report, format__in=[INVOICE + name for name, _ in page])
    invoices = {file.format: file for file in files}
    return {
        "basis": found["basis"],
        "rows": [(name, row, invoices.get(INVOICE + name)) for name, row in page],
        "totals": found["totals"],
        "page": page,
        "more_than_a_page": len(named) > PAGE,
        "text": text,
        "keep": f"{'&' + urlencode({'tenant': text}) if text else ''}#bill",
    }
