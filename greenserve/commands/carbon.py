"""carbon: the feeds of carbon intensity and electricity prices."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from greenserve.cli import fail

from .database import database

if TYPE_CHECKING:
    from pools.models import Site
    from telemetry.models import CarbonFeed
    from telemetry.selectors.feed_status import FeedStatus

PATIENCE_S = 40.0  # a run of beat takes at most 30
RUN_S = 600.0
SIGNALS = click.Choice(["average", "marginal", "price"])


@click.group()
def carbon() -> None:
    """Show feeds of carbon intensity and electricity prices: what they know, and where it comes from.

    Keys of providers come from the environment (GREENSERVE_WATTTIME_USER ...) or from a file of such lines that
    GREENSERVE_SECRETS_FILE names and that only its owner can read. docs/carbon.md has them all.
    """


@carbon.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@database()
def feeds(as_json: bool) -> None:
    """Show every feed: how fresh it is, its last error, its forecast, its gaps of the last day.

    Exit status 1 when a feed is not fresh.
    """
    from telemetry.selectors.feed_status import statuses

    now = datetime.now(UTC)
    found = statuses(now)
    if as_json:
        click.echo(json.dumps([{**asdict(row), "gap_s": row.gap_s} for row in found]))
    else:
        for row in found:
            _show(row, now.timestamp())
        if not found:
            click.echo("There is no feed yet: `greenserve carbon set SITE --provider NAME`.")
    raise SystemExit(0 if all(row.state == "fresh" for row in found) else 1)


def _show(row: FeedStatus, now_s: float) -> None:
    factor = f", {row.factor}" if row.factor else ""
    click.echo(f"{row.site} {row.signal}: {row.state}; {row.provider}, zone {row.zone}{factor}")
    if row.source:
        click.echo(f"  source: {row.source}")
    horizon = f"  measured until {_at(row.known_until_s)}, forecast until {_at(row.forecast_until_s)}"
    click.echo(f"{horizon} by {row.forecast_model or 'the provider'}; asked each {row.refresh_s:g} s")
    if row.last_error:
        click.echo(f"  {_at(row.last_error_s)}: {row.last_error}")
    if row.cool_down_until_s is not None and row.cool_down_until_s > now_s:
        click.echo(f"  left alone until {_at(row.cool_down_until_s)}")
    if row.gaps:
        spans = ", ".join(f"{_at(a)} to {_at(b)}" for a, b in row.gaps[:3])
        more = f" and {len(row.gaps) - 3} more" if len(row.gaps) > 3 else ""
        click.echo(f"  gaps of the last day, {row.gap_s / 60:.0f} min: {spans}{more}")


def _at(at_s: float | None) -> str:
    return "never" if at_s is None else f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%SZ}"


@carbon.command()
@click.option("--site", help="Only of this site.")
@click.option("--signal", type=SIGNALS, help="Only of this signal.")
@click.option("--from", "start", help="With --to: the actuals of a stretch of the past, such as 2026-05-01T00:00Z.")
@click.option("--to", "end", help="Where that ends.")
@database()
def fetch(site: str | None, signal: str | None, start: str | None, end: str | None) -> None:
    """Ask the providers now: what is new, or with --from and --to what was. Asking again stores nothing twice.

    Exit status 1 when a feed fails.
    """
    from core.ports import AdapterError
    from pools import database_locks
    from pools.database_locks import Lock
    from telemetry.carbon import feeds as polling

    span, feeds = _span(start, end), _chosen(site, signal)
    failed = False
    with database_locks.held(Lock.FEEDS, PATIENCE_S) as held:
        if not held:
            fail("the providers are being asked by another run; try again in a minute")
        world = polling.outside(run_s=RUN_S)
        for feed in feeds:
            now = datetime.now(UTC)
            try:
                stored = polling.fetch(feed, *span, now, world) if span else polling.refresh_feed(feed, now, world)
                feed.refresh_from_db()
                error = "" if span else feed.last_error
            except AdapterError as refused:
                stored, error = 0, str(refused)
            failed |= bool(error)
            click.echo(f"{feed}: {error or f'{stored} points were new'}", err=bool(error))
    raise SystemExit(1 if failed else 0)


def _span(start: str | None, end: str | None) -> tuple[datetime, datetime] | None:
    if start is None and end is None:
        return None
    if start is None or end is None:
        fail("--from and --to go together", 2)
    edges = []
    for option, text in (("--from", start), ("--to", end)):
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            fail(f"{option} {text!r} is no time: write 2026-05-01T00:00Z", 2)
        if at.tzinfo is None:
            fail(f"{option} {text!r} has no zone: end it with Z", 2)
        edges.append(at)
    if edges[1] <= edges[0]:
        fail("--to must be after --from", 2)
    return edges[0], edges[1]


def _chosen(site: str | None, signal: str | None) -> list[CarbonFeed]:
    from telemetry.models import CarbonFeed

    rows = CarbonFeed.objects.select_related("site").order_by("site__rank", "signal")
    if site is not None:
        rows = rows.filter(site=_site(site))
    found = [feed for feed in rows if signal in (None, feed.signal)]
    if not found:
        fail("there is no such feed; `greenserve carbon feeds` shows those that there are")
    return found


def _site(name: str) -> Site:
    from pools.models import Site

    found = Site.objects.filter(name=name).first()
    if found is None:
        known = ", ".join(Site.objects.values_list("name", flat=True)) or "none yet"
        fail(f"there is no site '{name}'; known are: {known}")
    return found


@carbon.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--site", required=True, help="Whose feed it is for.")
@click.option("--signal", type=SIGNALS, default="average", show_default=True)
@click.option("--zone", help="The file's zone; the site's own where it is left out.")
@database()
def import_file(file: str, site: str, signal: str, zone: str | None) -> None:
    """Store what a CSV FILE says was measured (zone,start_utc,end_utc,signal,value,unit,factor,source).

    A SITE that has no feed of this signal gets one, which reads a copy of FILE in the folder of feeds' files.
    Other values for intervals that are known become revisions: reports can be made as they were and as they are.
    """
    from django.db import transaction

    from core.ports import AdapterError
    from telemetry.carbon import feeds as polling
    from telemetry.models import CarbonFeed
    from telemetry.providers import feed_files
    from telemetry.providers.static_csv import StaticCsvProvider

    owner = _site(site)
    now = datetime.now(UTC)
    known = zone or owner.grid_zone
    try:
        body = Path(file).read_bytes()
        config = {"file": file, "zone": known, "signal": signal}
        provider = StaticCsvProvider(config, polling.outside(), feed_files.decoded(body, file))
        points = provider.actuals(known, 0.0, now.timestamp())
        with transaction.atomic():
            feed, made = CarbonFeed.objects.get_or_create(
                site=owner, signal=signal, defaults={"provider": "static_csv"}
            )
            if made:
                feed.config = {"file": _kept(body, f"{owner.name}-{signal}.csv"), "zone": known}
                feed.save(update_fields=["config"])
        stored = polling.append(feed, points, now)
    except (AdapterError, OSError) as error:
        fail(str(error))
    click.echo(f"{feed}: {stored} of {len(points)} points were new{' (the feed is new, too)' if made else ''}")


def _kept(body: bytes, name: str) -> str:
    """Puts a copy where a new feed reads it, in the folder of feeds' files; returns its name there."""
    from django.conf import settings

    path = settings.GREENSERVE_FEEDS_DIR / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_bytes() != body:
        fail(f"a new feed would read {path}, where another file stands: move that one away, or make the feed first")
    path.write_bytes(body)
    return name


@carbon.command("set")
@click.argument("site")
@click.argument("settings", metavar="[KEY=VALUE ...]", nargs=-1)
@click.option("--provider", required=True, help="electricity_maps, watttime, gb_carbon_intensity, pjm, entsoe, eia ...")
@click.option("--signal", type=SIGNALS, default="average", show_default=True)
@click.option("--zone", default="", help="The provider's name of the zone; the site's own where it is left out.")
@click.option("--factor", type=click.Choice(["direct", "lifecycle"]), help="The provider's usual one if left out.")
@click.option("--refresh", "refresh_s", type=click.FloatRange(1.0), help="Seconds between two calls.")
@click.option("--source", default="", help="Shown under every figure drawn from it.")
@database()
def set_feed(
    site: str,
    settings: tuple[str, ...],
    provider: str,
    signal: str,
    zone: str,
    factor: str | None,
    refresh_s: float | None,
    source: str,
) -> None:
    """Give SITE a feed, or change where its feed comes from; what was stored stays.

    \b
    greenserve carbon set location-1 --provider pjm --signal marginal --zone 51291
    greenserve carbon set location-1 --provider electricity_maps --zone US-MIDA-PJM plan=paid
    """
    from core.ports import AdapterError
    from telemetry.carbon import feeds as polling
    from telemetry.models import CarbonFeed

    config = {}
    for text in settings:
        key, sign, value = text.partition("=")
        if not sign:
            fail(f"'{text}' is no setting: write KEY=VALUE", 2)
        config[key] = value
    owner = _site(site)
    feed = CarbonFeed.objects.filter(site=owner, signal=signal).first() or CarbonFeed(site=owner, signal=signal)
    feed.provider, feed.zone, feed.factor, feed.refresh_s = provider, zone, factor or "", refresh_s
    feed.config, feed.source, feed.failures, feed.cool_down_until = config, source, 0, None
    try:
        capabilities = polling.provider(feed).capabilities
    except AdapterError as error:
        fail(str(error), 2)
    feed.save()
    ahead = (
        f"forecasts {capabilities.horizon_s / 3600:.0f} h ahead" if 0 < capabilities.horizon_s < float("inf") else ""
    )
    ahead = ahead or ("no forecast of its own" if not capabilities.horizon_s else "forecasts as far as it reaches")
    click.echo(f"{feed}: each {capabilities.step_s / 60:g} min, {ahead}; asked from now on")
