"""decisions: goes through recorded epochs again."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from greenserve.cli import fail

from .database import database


@click.command()
@click.option("--service", help="Only of this service.")
@click.option("--last", type=click.IntRange(1), default=100, show_default=True, help="So many epochs, the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def decisions(service: str | None, last: int, as_json: bool) -> None:
    """Take the steps of recorded epochs again, on what they were given then, and compare what they decide.

    Without clock, database or nodes, as in the simulator: a difference means that the code decides otherwise now than
    it did (exit status 1). Recordings are kept for two days.
    """
    from core.observations.recording import RecordingError

    with database():
        from scheduler.control.recordings import replay
        from scheduler.models import Epoch

        epochs = Epoch.objects.filter(recording__isnull=False).order_by("-started_at")
        if service is not None:
            epochs = epochs.filter(service__name=service)
        try:
            found = [step for epoch in epochs[:last] for step in replay(epoch)]
        except RecordingError as error:
            fail(f"the recordings are of another version: {error}")
    differ = [step for step in found if not step.same]
    if as_json:
        click.echo(json.dumps({"steps": len(found), "differ": [asdict(step) for step in differ]}))
    else:
        for step in differ:
            click.echo(f"epoch {step.epoch_id} ({step.kind}, {step.step}):\n  then {step.then}\n  now  {step.now}")
        click.echo(f"{len(found)} steps of {last} epochs at most: {len(differ)} decide otherwise.")
    raise SystemExit(1 if differ else 0)
