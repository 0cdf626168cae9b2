"""Adds a finished report's lines up by other rows, as of its version: sums are those of its files."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import polars

from core.chart_values import StackedBars
from telemetry.models import Report
from telemetry.report_values.basis import Basis
from telemetry.report_values.day_charts import day_charts
from telemetry.report_values.lines import DIMENSIONS
from telemetry.report_values.report_request import ReportRequest
from telemetry.report_values.table import COLUMNS, Column
from telemetry.report_values.totals import MEASURES, Day, Group, Totals, sums_of_lines, sums_of_sums

from . import settled_lines
from .ledger_source import Scope
from .report_requests import folder_of
from .writers.files import empty_totals

ROWS = (*DIMENSIONS, "day")
USUAL = ("energy_kwh", "scope2_location_kgco2e", "cost", "output_tokens")
KEPT = "sums.parquet"
# Requests are on record by the period, where they began, and not by the day.
NOT_BY_DAY = ("requests", "requests_without_tokens", "slo_judged", "slo_met", "slo_attainment")


def columns(by: Collection[str], names: Collection[str]) -> tuple[Column, ...]:
    """Returns the columns of these names that such rows have; the usual ones where none is named."""
    wanted = set(names) & {column.name for column in COLUMNS} or set(USUAL)
    left_out = NOT_BY_DAY if "day" in by else ()
    return tuple(column for column in COLUMNS if column.name in wanted and column.name not in left_out)


def rows(report: Report, by: tuple[str, ...]) -> list[Group]:
    """Returns the groups of a report that is done, `by` of ROWS: sums of its lines as of its version."""
    request = replace(ReportRequest.from_json(report.asked), by=by)
    basis = Basis.from_json(report.basis)
    found = empty_totals(request, basis, request.span())
    found.add_sums(_sums(report, request, basis))
    if "day" not in by:
        found.add_slo(basis.slo, {name: site.currency for name, site in basis.sites.items()})
    return found.rows()


def charts(report: Report) -> dict[str, StackedBars]:
    """Returns the charts of a report that is done, as its document has them."""
    days: dict[tuple[str, str], Totals] = {}
    for group in rows(report, ("day", "site")):
        date, site = map(str, group.key)
        one = days.setdefault((date, site), Totals())
        one += group.totals
    sites = Basis.from_json(report.basis).sites_by_rank()
    return day_charts([Day(date, site, days[date, site]) for date, site in sorted(days)], sites)


def _sums(report: Report, request: ReportRequest, basis: Basis) -> polars.DataFrame:
    """Returns the sums by all ROWS. What a version says never changes: they are kept beside the report's files."""
    path = folder_of(report) / KEPT
    if path.exists():
        found = polars.read_parquet(path)
        if {*ROWS} <= {*found.columns}:  # else they are of a release that parted lines by less
            return found
    scope = Scope(request.span(), basis.ledger_version, tuple(site.pk for site in basis.sites.values()))
    totals = empty_totals(request, basis, scope.period)
    by = (*ROWS, "currency")
    parts = [sums_of_lines(totals.add(block), by) for block in settled_lines.blocks(scope, basis)]
    found = sums_of_sums(polars.concat(parts), by).with_columns(polars.col(MEASURES).cast(polars.Int64))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix="making-", delete=False) as draft:
        found.write_parquet(draft)
    Path(draft.name).replace(path)
    return found


def totals(groups: Sequence[Group]) -> list[Group]:
    """Returns the sum of all groups of each currency."""
    found: dict[str | None, Totals] = {}
    for group in groups:
        one = found.setdefault(group.currency, Totals())
        one += group.totals
    return [Group((), currency, found[currency], idle_known=False) for currency in sorted(found, key=str)]
