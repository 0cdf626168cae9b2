"""Adds a finished report's lines up by other rows, as of its version: sums are those of its files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from telemetry.models import Report
from telemetry.report_values.basis import Basis
from telemetry.report_values.lines import DIMENSIONS
from telemetry.report_values.report_request import ReportRequest
from telemetry.report_values.table import COLUMNS, Column
from telemetry.report_values.totals import Group, Totals

from . import settled_lines
from .ledger_source import Scope
from .writers.files import empty_totals

ROWS = (*DIMENSIONS, "day")
USUAL = ("energy_kwh", "scope2_location_kgco2e", "cost", "output_tokens")
# Requests are on record by the period, where they began, and not by the day.
NOT_BY_DAY = ("requests", "requests_without_tokens", "slo_judged", "slo_met", "slo_attainment")


def columns(by: Collection[str], names: Collection[str]) -> tuple[Column, ...]:
    """Returns the columns of these names that such rows have; the usual ones where none is named."""
    wanted = set(names) & {column.name for column in COLUMNS} or set(USUAL)
    left_out = NOT_BY_DAY if "day" in by else ()
    return tuple(column for column in COLUMNS if column.name in wanted and column.name not in left_out)


def rows(report: Report, by: tuple[str, ...]) -> list[Group]:
    """Returns the groups of a report that is done, `by` of ROWS. Reads its lines from the ledger as of its version."""
    request = replace(ReportRequest.from_json(report.asked), by=by)
    basis, period = Basis.from_json(report.basis), request.span()
    scope = Scope(period, basis.ledger_version, tuple(site.pk for site in basis.sites.values()))
    found = empty_totals(request, basis, period)
    for block in settled_lines.blocks(scope, basis):
        found.add(block)
    if "day" not in by:
        found.add_slo(basis.slo, {name: site.currency for name, site in basis.sites.items()})
    return found.rows()


def totals(groups: Sequence[Group]) -> list[Group]:
    """Returns the sum of all groups of each currency."""
    found: dict[str | None, Totals] = {}
    for group in groups:
        one = found.setdefault(group.currency, Totals())
        one += group.totals
    return [Group((), currency, found[currency], idle_known=False) for currency in sorted(found, key=str)]
