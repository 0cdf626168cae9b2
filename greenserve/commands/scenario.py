"""scenario: the fleet, a preset or a study as files that `simulate` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from greenserve.cli import fail

from .database import all_sites_user, database


@click.command()
@click.option("--base", default="fleet", show_default=True, help="fleet, a preset's name, or study:ID.")
@click.option(
    "--from", "begin", metavar="TIME", help="With --to: the requests of then, and carbon and prices as they were."
)
@click.option("--to", "end", metavar="TIME", help="Such as 2026-01-31T14:00+00:00.")
@click.option("--service", help="Whose requests.  [default: all]")
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="A folder to write to.")
def scenario(base: str, begin: str | None, end: str | None, service: str | None, out: Path) -> None:
    """Write the fleet as a scenario, with its series and requests as CSVs.

    It has what the loops decide by: policies, periods, declared loads, profiles, times of changes, caps.

    \b
    greenserve scenario --out today
    greenserve scenario --from 2026-01-31T14:00+00:00 --to 2026-01-31T15:00+00:00 --out hour
    greenserve simulate hour/scenario.yaml
    """
    if (begin is None) != (end is None):
        raise click.UsageError("--from and --to go together")
    traffic: dict[str, Any] = {"kind": "keep"} if begin is None else {"kind": "past", "from": begin, "to": end}
    traffic |= {} if service is None else {"service": service}
    with database():
        from django.utils import timezone

        from scheduler.whatif import scenario_archive, study_drafts
        from scheduler.whatif.errors import BadStudy

        try:
            made = study_drafts.draft({"traffic": traffic}, base, all_sites_user(), None, timezone.now())
        except BadStudy as error:
            fail(f"{error.field}: {error.message}", 2)
        out.mkdir(parents=True, exist_ok=True)
        for name, data in scenario_archive.files(made).items():
            (out / name).write_bytes(data)
    for note in made.notes:
        click.echo(note, err=True)
    click.echo(out / scenario_archive.NAME)
