"""report: energy, carbon and cost of a period, as files that finance can sign."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenserve.cli import fail

from .database import database

if TYPE_CHECKING:
    from telemetry.models import Report

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def report() -> None:
    """Make, list, fetch and verify reports of energy, carbon and cost.

    \b
    greenserve report make 2026-10
    greenserve report make 2026-W45 --by tenant,service --format focus-csv,focus-parquet,pdf
    greenserve report make 2026-10 --format focus-csv --focus-version 1.0
    greenserve report make 2026-10 --basis allocation --format pdf,bill-csv,invoices
    greenserve report make 2026-10 --sites ashburn --zone site --out reports/
    greenserve report list
    greenserve report fetch 12 --out reports/
    greenserve report verify 12
    """


@report.command()
@click.argument("period")
@click.option("--zone", default="UTC", show_default=True, help="UTC, a time zone, or site: that of the one site.")
@click.option("--by", default=None, help="Group by these, with commas: site,tenant,service,pool,model.")
@click.option(
    "--format",
    "formats",
    default=None,
    help="focus-csv,focus-parquet,csv,xlsx,pdf,bill-csv,invoices,scope2-csv,esrs-csv, with commas.",
)
@click.option(
    "--basis", default=None, help="Who bears what is shared: usage (if not given), allocation, marginal; none: no bill."
)
@click.option(
    "--matching", default=None, help="How contracts for electricity cover what is used: hourly (if not given), period."
)
@click.option("--focus-version", default=None, help="Version of FOCUS: 1.0, 1.2, 1.4 (the newest if not given).")
@click.option("--sites", default=None, help="Only these sites, with commas.")
@click.option(
    "--baseline", is_flag=True, help="Replay the requests under single_pool, to say what was saved (modelled)."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Copy the files to this folder.")
@JSON
def make(
    period: str,
    zone: str,
    by: str | None,
    formats: str | None,
    basis: str | None,
    matching: str | None,
    focus_version: str | None,
    sites: str | None,
    baseline: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Make a report of PERIOD now, in this process.

    PERIOD: 2026-10 (a month), 2026-W45 (a week), 2026-10-05 (a day), or two dates, the second excluded:
    2026-10-05/2026-10-12.
    """
    given = {
        **{"period": period, "zone": zone, "by": by, "formats": formats, "basis": basis, "sites": sites},
        **{"matching": matching, "baseline": baseline, "focus_version": focus_version},
    }
    with database():
        from telemetry.models import Report
        from telemetry.report_values.errors import BadReport
        from telemetry.reports import report_jobs, report_requests

        try:
            asked = report_requests.ask({key: value for key, value in given.items() if value is not None})
        except BadReport as error:
            fail(str(error), 2)
        done = report_jobs.make(asked.pk)
        found = Report.objects.select_related("job").get(pk=asked.pk)
        if not done:
            fail(found.job.error or "stopped", 2)
        if out is not None:
            _copy(found, out)
        _show(found, as_json)


@report.command("list")
@click.option("--last", type=click.IntRange(1), default=20, show_default=True, help="So many, the newest.")
@JSON
def listing(last: int, as_json: bool) -> None:
    """List reports, the newest first."""
    with database():
        from telemetry.models import Report

        rows = [_row(found) for found in Report.objects.select_related("job").prefetch_related("files")[:last]]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        files = ", ".join(file["format"] for file in row["files"])
        signed = f", signed by {row['signed_by']}" if row["signed_by"] else ""
        click.echo(
            f"{row['id']}: {row['period']} {row['version'] or ''} {row['state']}{signed}: {files or row['error']}"
        )


@report.command()
@click.argument("number", type=int)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="To this folder.")
def fetch(number: int, out: Path) -> None:
    """Copy a report's files here, or to another folder."""
    with database():
        for path in _copy(_find(number), out):
            click.echo(path)


@report.command()
@click.argument("number", type=int)
@JSON
def verify(number: int, as_json: bool) -> None:
    """Make a report's files again from the ledger as of its version, and compare checksums and the signature.

    Exit status 1: a file or the signature came out otherwise, or the file that is kept is not the one that was made.
    """
    import hashlib

    with database():
        from telemetry.reports import report_jobs, report_requests

        found = _find(number)
        differ = [
            {"file": one.name, "then": one.then, "made_again": one.now, **({"why": one.why} if one.why else {})}
            for one in report_jobs.reproduce(found)
        ]
        for file in found.files.all():
            path = report_requests.path_of(file)
            kept = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
            if kept != file.sha256:
                differ.append({"file": file.name, "then": file.sha256, "kept": kept})
        count, signature = found.files.count(), (found.summary or {}).get("signature")
    if as_json:
        click.echo(json.dumps({"files": count, "differ": differ, "signature": signature}))
    else:
        for one in differ:
            click.echo(f"{one['file']}: {one}")
        click.echo(f"{count} files: {'all as they were' if not differ else f'{len(differ)} differ'}")
    raise SystemExit(1 if differ else 0)


def _find(number: int) -> Report:
    from pools.models import JobState
    from telemetry.models import Report

    found = Report.objects.select_related("job").prefetch_related("files").filter(pk=number).first()
    if found is None:
        fail(f"there is no report {number}; see `greenserve report list`", 2)
    if found.job.state != JobState.DONE:
        fail(f"report {number} is {found.job.state}{f': {found.job.error}' if found.job.error else ''}")
    return found


def _copy(found: Report, out: Path) -> list[Path]:
    from telemetry.reports import report_requests

    try:
        out.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copyfile(report_requests.path_of(file), out / file.name)) for file in found.files.all()]
    except OSError as error:
        fail(f"cannot copy the files: {error}")


def _row(found: Report) -> dict[str, Any]:
    return {
        "id": found.pk,
        "period": found.asked["period"],
        "version": (found.summary or {}).get("version"),
        "state": found.job.state,
        "error": found.job.error,
        "signed_by": found.signed_by,
        "summary": found.summary,
        "files": [
            {"format": file.format, "name": file.name, "sha256": file.sha256, "bytes": file.size_bytes}
            for file in found.files.all()
        ],
    }


def _show(found: Report, as_json: bool) -> None:
    row = _row(found)
    if as_json:
        click.echo(json.dumps(row))
        return
    state = ", provisional: part of the period is not settled yet" if row["summary"]["provisional"] else ""
    click.echo(f"Report {row['id']}, version {row['version']}{state}")
    if signature := row["summary"]["signature"]:
        click.echo(f"  {signature}  signature over figures and inputs")
    for file in row["files"]:
        click.echo(f"  {file['sha256']}  {file['name']}")
