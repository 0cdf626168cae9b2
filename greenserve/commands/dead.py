"""dead: rows of agents and gateways that could not be stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from greenserve.cli import fail

from .database import database

if TYPE_CHECKING:
    from telemetry.models import DeadRow


@click.group()
def dead() -> None:
    """Show and store again what could not be stored, and was set aside while the other rows of its message were stored.

    Each has the reason: a time far from this machine's clock, a number out of its range, a text that is none. They are
    kept for 14 days, the newest 20,000 at most.
    """


@dead.command("list")
@click.option("--last", type=click.IntRange(1), default=100, show_default=True, help="So many, the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@database()
def list_(last: int, as_json: bool) -> None:
    """List what was set aside, the newest first: number, time, source, kind, rows and reason.

    What is only ahead of the clock is stored by itself at the time that is shown.
    """
    from telemetry.models import DeadRow

    rows, count = list(DeadRow.objects.order_by("-pk").defer("body")[:last]), DeadRow.objects.count()
    if as_json:
        click.echo(json.dumps({"count": count, "rows": [_values(row) for row in rows]}))
        return
    for row in rows:
        found = _values(row)
        shown = "  ".join(str(found[name]) for name in ("id", "received_at", "source", "kind", "rows", "why"))
        click.echo(shown if found["due_at"] is None else f"{shown}  tried again at {found['due_at']}")
    click.echo(f"{count} set aside in all." if count else "Nothing is set aside.")


@dead.command()
@click.argument("ids", nargs=-1, type=click.IntRange(1))
@click.option("--all", "every", is_flag=True, help="All that is set aside.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@database()
def replay(ids: tuple[int, ...], every: bool, as_json: bool) -> None:
    """Take rows that were set aside, by their numbers in `greenserve dead list`, and store them if that is possible.

    What is stored leaves the list. A request record that is there already stays as it is. Exit status 1 when something
    still cannot be stored, 2 when there is no row of a number.
    """
    from django.conf import settings
    from django.utils.module_loading import import_string

    from telemetry.ingest import replaying
    from telemetry.models import DeadRow

    if bool(ids) == every:
        fail("give the numbers of rows, as `greenserve dead list` shows them, or --all", 2)
    there = set(DeadRow.objects.values_list("pk", flat=True))
    if missing := set(ids) - there:
        fail(f"no dead row {min(missing)}; `greenserve dead list` shows which there are", 2)
    sink = import_string(settings.GREENSERVE_CLOCK_DECISION_SINK)
    found = replaying.replay(there if every else ids, sink)
    if as_json:
        click.echo(
            json.dumps([{"id": one.id, "rows": one.rows, "stored": not one.why, "why": one.why} for one in found])
        )
    else:
        for one in found:
            click.echo(f"{one.id}  " + (f"still set aside: {one.why}" if one.why else f"stored ({one.rows} rows)"))
        click.echo(f"{sum(not one.why for one in found)} of {len(found)} stored.")
    raise SystemExit(1 if any(one.why for one in found) else 0)


def _values(row: DeadRow) -> dict[str, Any]:
    return {
        "id": row.pk,
        "received_at": row.received_at.isoformat(timespec="seconds"),
        "source": row.source or row.stream,
        "kind": row.kind,
        "rows": row.rows,
        "why": row.why,
        "due_at": None if row.due_at is None else row.due_at.isoformat(timespec="seconds"),
    }
