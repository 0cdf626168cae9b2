"""A report's signature: SHA-256 over its figures and its inputs, so that neither can change unnoticed.

Files are drawn from these; a newer program may draw them otherwise, and the signature stays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .basis import Basis
from .bill import Bill
from .report_request import ReportRequest
from .totals import ReportTotals, Totals


def signature(request: ReportRequest, basis: Basis, totals: ReportTotals, bill: Bill) -> str:
    """Returns 64 hexadecimal digits. The same request, basis and lines have the same ones, whatever wrote them."""
    inputs = {key: value for key, value in basis.as_json().items() if key != "writers"}
    if not basis.inputs.factors:
        del inputs["inputs"]["factors"]  # so that reports of before it was kept have the signature of then
    inputs["slo"] = [_without_none(count, "adapter") for count in inputs["slo"]]  # the same
    return signature_of({"asked": request.as_json(), "inputs": inputs, "figures": figures(totals, bill)})


def figures(totals: ReportTotals, bill: Bill) -> dict[str, Any]:
    """Returns all whole numbers that a report's files are drawn from."""
    return {
        "rows": [[list(group.key), group.currency, _sums(group.totals)] for group in totals.rows()],
        "days": [asdict(day) | {"totals": _sums(day.totals)} for day in totals.days_and_sites()],
        "bill": {
            "basis": bill.basis,
            "lines": [_without_none(asdict(line), "adapter") | {"totals": _sums(line.totals)} for line in bill.lines],
            "demand": list(map(asdict, bill.demand)),
        },
    }


def _without_none(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Leaves a value out that is None, as before there was one."""
    return {key: value for key, value in values.items() if key != name or value is not None}


def _sums(totals: Totals) -> dict[str, int]:
    """Returns sums by name. Where no host was metered they say nothing of it, as before there were host meters."""
    found: dict[str, int] = asdict(totals)
    if not totals.host_metered:
        del found["host_uj"], found["host_known_uj"]
    return found


def signature_of(content: Mapping[str, Any]) -> str:
    """Signs JSON with sorted keys and no spaces, which is the same text for the same content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
