"""Reports from being asked for to lying on disk; and made again, to see that they still come out the same."""

from __future__ import annotations

import errno
import importlib.metadata
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from pools.models import Job, JobState, Site
from telemetry.models import Report, ReportFile, Settlement
from telemetry.report_values import scope2_table
from telemetry.report_values.basis import WRITERS, Baseline, Basis, SiteBasis
from telemetry.report_values.bill import OPERATOR, Bill
from telemetry.report_values.bill_table import CELLS, BillRow, by_currency, by_tenant
from telemetry.report_values.errors import BadReport
from telemetry.report_values.esrs import table as esrs_table
from telemetry.report_values.line_blocks import Block
from telemetry.report_values.period import Period
from telemetry.report_values.report_request import ReportRequest
from telemetry.report_values.statement import Statement
from telemetry.storage import synthetic

from . import contract_rows, ledger_source, settled_lines, tenant_bills
from .ledger_source import Scope
from .report_inputs import report_inputs
from .report_requests import NOT_WRITTEN, folder_of, number, reports_folder
from .writers.files import make_files
from .writers.read_back import MadeFile

log = logging.getLogger(__name__)

REPORT_EVERY_S = 1.0
SIGNATURE = "signature"
DISK_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EFBIG}
MOST_CHANGES = 1_000  # intervals that are listed; the first one says how many more there are


class Cancelled(Exception):
    """Somebody asked for the job to be stopped."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A file, or the signature, that came out otherwise than when the report was made. `now` is None: not at all.

    `why`: what is known of the reason.
    """

    name: str
    then: str
    now: str | None
    why: str = ""


def make(report_id: int) -> bool:
    """Makes a report whose job is queued. What goes wrong stands on the job. Returns whether it is done."""
    report = Report.objects.select_related("job", "revises").get(pk=report_id)
    if not Job.objects.filter(pk=report.job_id, state=JobState.QUEUED).update(
        state=JobState.RUNNING, started_at=timezone.now()
    ):
        log.info("report %s is not queued: another worker has it, or it was cancelled", report_id)
        return False
    state, error = JobState.DONE, ""
    try:
        _make(report)
    except Cancelled:
        state = JobState.CANCELLED
    except BadReport as bad:
        state, error = JobState.FAILED, str(bad)
    except Exception as failure:
        log.exception("report %s failed", report_id)
        disk = _disk_fault(failure)
        state = JobState.FAILED
        error = disk or f"the report failed: {failure}; see the log of the worker"
    done = {"progress": 1.0} if state == JobState.DONE else {}
    Job.objects.filter(pk=report.job_id).update(state=state, error=error, finished_at=timezone.now(), **done)
    return state == JobState.DONE


def _disk_fault(failure: BaseException) -> str | None:
    """Returns what to tell of a failure where the disk is at fault, also where a writer of files wraps its error; None:
    it is not."""
    folder = Path(settings.GREENSERVE_REPORTS_DIR)
    links: list[object] = [failure, failure.__cause__, failure.__context__, *failure.args]
    for error in links:
        if isinstance(error, OSError) and error.errno in DISK_FAULTS:
            return f"{NOT_WRITTEN}{folder}: {error.strerror}; make room there, or mend the disk, and ask again"
    return None


def _make(report: Report) -> None:
    request = ReportRequest.from_json(report.asked)
    version = ledger_source.newest_version()
    if version is None:
        raise BadReport("period", "the ledger has settled nothing yet")
    scope = _scope(request, version)
    basis = _basis(report, request, scope)
    tell = _JobProgress(report.job_id, scope.period)
    with tempfile.TemporaryDirectory(dir=reports_folder(), prefix="making-") as draft:
        folder = Path(draft)
        statement, files = make_files(request, basis, tell.watch(settled_lines.blocks(scope, basis)), folder)
        if statement.bill is not None:
            tenant_bills.keep(statement.bill, folder)
        changes = _changes(report, scope)
        with transaction.atomic():
            ReportFile.objects.bulk_create(_row(report, file) for file in files)
            Report.objects.filter(pk=report.pk).update(
                ledger_version=version, basis=basis.as_json(), summary=_summary(statement), changes=changes
            )
            _put(folder, folder_of(report))


def _put(draft: Path, target: Path) -> None:
    """Gives finished files their place in one step: no report has half of its files. Raises OSError."""
    for path in draft.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    draft.chmod(0o755)
    if target.exists():  # of an attempt that was killed before it was on record
        shutil.rmtree(target)
    draft.rename(target)


def _scope(request: ReportRequest, version: int) -> Scope:
    sites = Site.objects.filter(name__in=request.sites) if request.sites else Site.objects.all()
    return Scope(request.span(), version, tuple(sites.order_by("pk").values_list("pk", flat=True)))


def _basis(report: Report, request: ReportRequest, scope: Scope) -> Basis:
    sites = ledger_source.site_bases(scope)
    pools, tenants = ledger_source.pool_bases(scope.site_ids), ledger_source.tenant_bases()
    settled_until_s = ledger_source.settled_until_s(scope)
    return Basis(
        number=number(report),
        revision=report.revision,
        ledger_version=scope.version,
        made_s=int(report.created_at.timestamp()),
        organisation=settings.GREENSERVE_ORGANISATION,
        product=f"GreenServe {importlib.metadata.version('greenserve')}",
        settled_until_s=settled_until_s,
        sites=sites,
        pools=pools,
        tenants=tenants,
        contracts=contract_rows.contracts(scope),
        slo=ledger_source.slo_counts(scope, pools, tenants, every=not request.sites),
        meters=ledger_source.meters(scope),
        demand=ledger_source.demand_charges(scope, tenants),
        baseline=_baseline(scope, sites, settled_until_s) if request.baseline else None,
        inputs=report_inputs(scope),
        writers=WRITERS,
    )


def _baseline(scope: Scope, sites: Mapping[str, SiteBasis], settled_until_s: int) -> Baseline:
    """Computes the baseline of the metered sites, from the first GPU's opening to where all is settled."""
    from . import baseline  # brings the simulator, which most reports do without

    made_up = synthetic.newest()
    if made_up is not None and scope.period.start < made_up.end_at:
        until = f"{made_up.end_at:%Y-%m-%d %H:%M}"
        raise BadReport("baseline", f"the past until {until} UTC is synthetic and has no requests: begin after it")
    opened = ledger_source.first_reading_s(scope)
    intensities = ledger_source.intensities_ug_per_uj(scope)
    site_ids = tuple(site.pk for site in sites.values())
    return baseline.replayed(site_ids, max(scope.period.start_s, opened), settled_until_s, intensities)


def _row(report: Report, file: MadeFile) -> ReportFile:
    return ReportFile(
        report=report,
        format=file.format,
        name=file.name,
        sha256=file.sha256,
        size_bytes=file.size_bytes,
        rows=file.rows,
    )


def _summary(statement: Statement) -> dict[str, Any]:
    """Returns what lists show, in base units; None is not known."""
    total = statement.total
    return {
        "version": statement.basis.version,
        "provisional": statement.provisional,
        "energy_j": None if total.metered_uj is None else total.metered_uj / 1e6,
        "host_j": None if total.host_known is None else total.host_known / 1e6,
        "without_host_j": total.host_missing_uj / 1e6,
        "location_gco2e": None if total.location is None else total.location / 1e6,
        "market_gco2e": None if total.market is None else total.market / 1e6,
        "cost": {
            currency: None if totals.cost_nano is None else totals.cost_nano / 1e9
            for currency, totals in statement.totals_by_currency.items()
            if currency is not None
        },
        "output_tokens": total.output_tokens,
        "lines": total.lines,
        "warnings": statement.warnings,
        "signature": statement.signature,
        "bill": None if statement.bill is None else _billed(statement.bill),
        "scope2": scope2_table.as_json(statement.scope2, statement.local_hour),
        "esrs": esrs_table.as_json(esrs_table.Esrs.of(statement)),
    }


def _billed(bill: Bill) -> dict[str, Any]:
    """Returns the bill's subtotals by tenant (null: the operator) and its totals by currency, as exact decimals."""
    rows = by_tenant(bill)
    operator = {OPERATOR: None}
    return {
        "basis": bill.basis,
        "tenants": [{"tenant": operator.get(row.names[0], row.names[0]), **_cells(row)} for row in rows],
        "totals": [_cells(row) for row in by_currency(bill)],
    }


def _cells(row: BillRow) -> dict[str, Any]:
    return {"currency": row.names[1], **{name: cell(row) for name, cell in CELLS.items()}}


def _changes(report: Report, scope: Scope) -> list[dict[str, Any]]:
    """Returns spans that were settled since the revision before; neighbours of one cause are joined."""
    before = report.revises
    if before is None or before.ledger_version is None:
        return []
    rows = Settlement.objects.filter(
        pk__gt=before.ledger_version,
        pk__lte=scope.version,
        site__in=scope.site_ids,
        start_at__gte=scope.period.start,
        start_at__lt=scope.period.end,
    )
    found: list[dict[str, Any]] = []
    for site, start, end, revision, cause in rows.order_by("site__name", "start_at", "revision").values_list(
        "site__name", "start_at", "end_at", "revision", "cause"
    ):
        what = cause if revision else "settled for the first time"
        last = found[-1] if found else None
        if last and (last["site"], last["cause"]) == (site, what) and last["end"] in (_text(start), _text(end)):
            last["end"] = _text(end)
        else:
            found.append({"site": site, "start": _text(start), "end": _text(end), "cause": what})
    if len(found) > MOST_CHANGES:
        found[MOST_CHANGES - 1 :] = [{"more": len(found) - MOST_CHANGES + 1}]
    return found


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


class _JobProgress:
    """Keeps a job's progress, and stops where somebody asks for it."""

    def __init__(self, job_id: int, period: Period) -> None:
        self._job_id, self._period = job_id, period
        self._reported_s = time.monotonic()

    def watch(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            if time.monotonic() - self._reported_s >= REPORT_EVERY_S:
                self._report(block["start_s"][0])
            yield block

    def _report(self, at_s: int) -> None:
        self._reported_s = time.monotonic()
        share = (at_s - self._period.start_s) / (self._period.end_s - self._period.start_s)
        Job.objects.filter(pk=self._job_id).update(progress=min(0.99, max(0.0, share)))
        if Job.objects.filter(pk=self._job_id, cancel_requested=True).exists():
            raise Cancelled


# -- made ------------------------------------------------------------------------------------------


def reproduce(report: Report) -> list[Difference]:
    """Makes a finished report's files again from the ledger as of its version; returns those that differ.

    Figures and inputs are signed, so that they can be compared where other writers draw the same as other bytes.
    """
    request = ReportRequest.from_json(report.asked)
    basis = Basis.from_json(report.basis)
    scope = Scope(request.span(), basis.ledger_version, tuple(site.pk for site in basis.sites.values()))
    with tempfile.TemporaryDirectory(dir=reports_folder(), prefix="again-") as draft:
        statement, files = make_files(request, basis, settled_lines.blocks(scope, basis), Path(draft))
    now = {file.name: file.sha256 for file in files}
    then = {file.name: file.sha256 for file in report.files.all()}
    signed = (report.summary or {}).get("signature")
    why = ""
    if basis.writers != WRITERS:
        figures = "its figures are signed, and are the same" if signed == statement.signature else "figures differ too"
        figures = figures if signed else "it has no signature to compare figures by"
        why = f"made by writers {basis.writers}, and these are writers {WRITERS}: bytes may differ; {figures}"
    found = [Difference(name, then[name], now.get(name), why) for name in sorted(then) if now.get(name) != then[name]]
    if signed and signed != statement.signature:
        found.append(Difference(SIGNATURE, signed, statement.signature))
    return found
