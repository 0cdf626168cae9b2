"""twin: the live fleet beside its own simulation, on the same requests."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenserve import env
from greenserve.cli import fail
from greenserve.commands.run import summary

from .database import all_sites_user, database
from .policy import change, split_setting
from .traffic import is_ready

if TYPE_CHECKING:
    from core.simulator.workload import TraceRequest
    from scheduler.whatif.twin import ComparedFigure, Margins, Twin

STANDS_WITHIN_S, RECORDED_WITHIN_S, LOOK_S = 180.0, 120.0, 2.0
STEP_S = 10.0  # of the demo's feeds
QUIET_S = 15.0  # for which nothing may have changed of the fleet before requests leave


@click.command()
@click.option(
    "--trace",
    "trace_file",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Requests to send: a trace in a format that replay reads.",
)
@click.option("--policy", "policy_name", required=True, help="The policy that the service gets: NAME.")
@click.option("--set", "knobs", multiple=True, metavar="KEY=VALUE", help="A setting of the policy.")
@click.option("--minutes", default=10.0, show_default=True, type=click.FloatRange(1.0, 24 * 60.0))
@click.option("--service", help="The service.  [default: the only one]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder for scenario, series, requests and figures.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option("--check", is_flag=True, help="Exit 1 where a figure is off by more than its margin.")
def twin(
    trace_file: Path,
    policy_name: str,
    knobs: tuple[str, ...],
    minutes: float,
    service: str | None,
    out: Path | None,
    as_json: bool,
    check: bool,
) -> None:
    """Send a trace's requests through the running product, simulate the same fleet and policy, and show both.

    The service gets the policy, and keeps it. Requests leave once its fleet stands. What ran is exported as a scenario,
    and simulated. No other traffic may come meanwhile (GREENSERVE_DEMO_RPS=0).

    \b
    greenserve twin --trace AzureLLMInferenceTrace_conv.csv --policy freesh --minutes 10
    """
    requests = _requests(trace_file, minutes)
    if not is_ready(gateway := summary(env.read())["gateway"]):
        fail(f"no gateway is ready at {gateway}: start the product, or set GREENSERVE_GATEWAY_PORT to where it listens")
    with database():
        from django.utils import timezone

        from core.policy.setting_texts import parse, stored
        from pools.models import Service
        from scheduler.whatif import twin as twins
        from scheduler.whatif.errors import BadStudy

        name, since = service or _only_service(), timezone.now()
        try:
            given = stored({key: parse(key, text) for key, text in map(split_setting, knobs)})
        except ValueError as error:
            fail(f"{error}; see `greenserve policy --list`", 2)
        before = Service.objects.filter(name=name, policy=policy_name, knobs=given).exists()
        change(name, policy_name, given)
        _wait_until_it_stands(name, None if before else since)
        _wait_for_a_step()
        start = timezone.now()
        click.echo(f"{len(requests)} requests in {minutes:g} min under {policy_name} ...", err=True)
        _send(requests, name)
        end = _recorded(name, start, len(requests))
        try:
            found = twins.of(
                Service.objects.get(name=name), start, end, timezone.now(), all_sites_user(), _margins(policy_name)
            )
        except BadStudy as error:
            fail(f"{error.field}: {error.message}")
    if out is not None:
        _write(out, found)
    if as_json:
        click.echo(json.dumps(found.as_json()))
    else:
        _print(found)
    if check and not found.holds:
        raise SystemExit(1)


def _only_service() -> str:
    from pools.models import Service

    names = list(Service.objects.values_list("name", flat=True))
    if len(names) != 1:
        fail(f"give --service; there are: {', '.join(names) or 'none'}", 2)
    return str(names[0])


def _requests(trace_file: Path, minutes: float) -> list[TraceRequest]:
    from core.simulator.workload import TraceError, read_azure_trace

    try:
        return list(takewhile(lambda one: one.at_s < 60.0 * minutes, read_azure_trace(trace_file)))
    except TraceError as error:
        fail(str(error), 2)


def _margins(policy_name: str) -> Margins:
    from core.policy.presets import PRESETS
    from core.types import Loop
    from scheduler.whatif.twin import STATIC, Margins

    knobs = PRESETS[policy_name].knobs
    return STATIC if all(knobs.has_no_choice(loop) for loop in Loop) else Margins()


def _wait_until_it_stands(service: str, since: datetime | None) -> None:
    """Waits until the loops have decided since the policy changed (None: it did not), every instance is ready, and that
    for a while."""
    from django.db.models import Q
    from django.utils import timezone

    from pools.models import Instance
    from scheduler.models import Decision

    deadline_s = time.monotonic() + STANDS_WITHIN_S
    states: list[str] = []
    while time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
        quiet = timezone.now() - timedelta(seconds=QUIET_S)
        rows = Instance.objects.filter(pool__service__name=service)
        states = list(rows.exclude(state=Instance.State.STOPPED).values_list("state", flat=True))
        decided = since is None or (
            since < quiet
            and Decision.objects.filter(service__name=service, kind__in=("carbon", "scale"), at__gte=since).exists()
        )
        changing = rows.filter(Q(created_at__gt=quiet) | Q(stopped_at__gt=quiet)).exists()
        if decided and not changing and set(states) == {Instance.State.READY.value}:
            return
    fail(f"the fleet of {service} did not come to rest in {STANDS_WITHIN_S:g} s: {', '.join(states) or 'no instance'}")


def _wait_for_a_step() -> None:
    """Waits for the next whole step of carbon feeds: what is simulated begins there, and nobody waits long for it."""
    time.sleep(STEP_S - time.time() % STEP_S)


def _send(requests: list[TraceRequest], service: str) -> None:
    from pools.load_generator import replay

    found = summary(env.read())
    if not found["api_keys"]:
        fail("no demo runs here to take keys from: a twin needs a gateway that its requests may go through")
    longest = max(one.output_tokens for one in requests)
    result = asyncio.run(replay(requests, found["gateway"], found["api_keys"], service, max_tokens=longest))
    click.echo(
        f"{result.ok} of {result.sent} ended well; the last left at most {result.max_lag_s:.2f} s late", err=True
    )
    if result.failed:
        click.echo(f"failed: {', '.join(f'{count} {reason}' for reason, count in result.failed.items())}", err=True)
    if not result.ok:
        fail("no request ended well: there is nothing to compare")


def _recorded(service: str, start: datetime, sent: int) -> datetime:
    """Waits until the records, and the ledger's entries up to their end, are in. Returns when the last one ended."""
    from django.db.models import Max

    from telemetry.models import EnergyEntry, RequestRecord

    deadline_s = time.monotonic() + RECORDED_WITHIN_S
    while True:
        rows = RequestRecord.objects.filter(service=service, started_at__gte=start)
        ends = [at + timedelta(seconds=e2e_s or 0.0) for at, e2e_s in rows.values_list("started_at", "e2e_s")]
        entered = EnergyEntry.objects.aggregate(at=Max("end_at"))["at"]
        if len(ends) >= sent and entered is not None and entered >= max(ends):
            return max(ends)
        if time.monotonic() > deadline_s:
            fail(f"{len(ends)} of {sent} requests are on record after {RECORDED_WITHIN_S:g} s; ledger at {entered}")
        time.sleep(LOOK_S)


def _write(folder: Path, found: Twin) -> None:
    from scheduler.whatif import scenario_archive

    folder.mkdir(parents=True, exist_ok=True)
    for name, data in scenario_archive.files(found.draft).items():
        (folder / name).write_bytes(data)
    values: dict[str, Any] = {
        **found.as_json(),
        "standing": {"live": list(found.live.standing), "simulated": list(found.simulated.standing)},
    }
    (folder / "twin.json").write_text(json.dumps(values, indent=1), encoding="utf-8")


def _print(found: Twin) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("", "live", "simulated", "difference", "may be", ""):
        table.add_column(column, justify="left" if column == "" else "right")
    for row in found.rows:
        table.add_row(*_cells(row), style=None if row.holds else "red")
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    for note in found.draft.notes:
        console.print(note)


def _cells(row: ComparedFigure) -> tuple[str, ...]:
    label = f"{row.label}{f', {row.unit}' if row.unit else ''}"
    values = ("-" if value is None else f"{value:,.4g}" for value in (row.live, row.simulated))
    points = "points" if row.share else "%"
    difference = "-" if row.difference is None else f"{100.0 * row.difference:+.1f} {points}"
    within = "" if row.within is None else f"{100.0 * row.within:g} {points}"
    return label, *values, difference, within, "" if row.holds else "off"
