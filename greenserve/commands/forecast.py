"""forecast: what is expected of carbon and load, and how good such forecasts were."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from greenserve.cli import fail

from .database import database
from .forecast_score import score as score_command
from .forecast_score_load import score_load

if TYPE_CHECKING:
    from telemetry.forecasts.load_forecasts import LoadForecast
    from telemetry.models import CarbonFeed, ForecastScore


@click.group(invoke_without_command=True)
@click.option("--service", help="Only the load of this service.")
@click.option("--site", help="Only the carbon of this site.")
@click.option("--score", is_flag=True, help="Back-test all models now, rather than when it is time.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def forecast(context: click.Context, service: str | None, site: str | None, score: bool, as_json: bool) -> None:
    """Show forecasts of load by class (the peak 5-second rates of the next six steps) and of carbon intensity, with the
    record of each model: mean pinball loss and MAPE of a back-test with rolling origin; of carbon and prices also the
    share of the steps that its interval from 10 to 90 % covers, and the regret of a kWh that waits for the lowest
    quarter of the steps ahead. `*` marks the one in use.

    `greenserve forecast score` scores carbon models on a file of hours, `score-load` models of load on a file of rates;
    they need no database.
    """
    if context.invoked_subcommand is None:
        _forecast(service, site, score, as_json)
    elif service or site or score or as_json:
        fail(f"options go behind {context.invoked_subcommand}", 2)


forecast.add_command(score_command)
forecast.add_command(score_load)


@database()
def _forecast(service: str | None, site: str | None, score: bool, as_json: bool) -> None:
    from django.db.models import Q

    from pools.models import Service
    from telemetry.forecasts import carbon_forecasts, load_forecasts
    from telemetry.models import CarbonFeed

    now = datetime.now(UTC)
    both = service is None and site is None
    services = Service.objects.filter(Q(name=service) if service else Q())
    services = services if both or service else services.none()
    feeds = CarbonFeed.objects.select_related("site").order_by("site__rank", "signal")
    feeds = feeds.filter(Q(site__name=site) if site else Q()) if both or site else feeds.none()
    if (service and not services) or (site and not feeds):
        fail(f"there is no {'service' if service and not services else 'site with a feed'} of that name", 2)
    if score:
        for feed in feeds:
            carbon_forecasts.score(feed, now)
        for one in services:
            for name in load_forecasts.classes(one.name, now):
                load_forecasts.score(one.name, name, now)
    rows = [_load(found) for one in services for found in load_forecasts.upcoming(one.name, now).values()]
    rows += [_carbon(feed, now) for feed in feeds]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        _show(row)
    if not rows:
        click.echo("There is nothing to forecast yet: no feed, and no load was seen.")


def _load(found: LoadForecast) -> dict[str, Any]:
    return {
        "of": "load",
        "unit": "requests/s",
        **{key: value for key, value in asdict(found).items() if key != "record"},
        "record": _record(found.record),
    }


def _carbon(feed: CarbonFeed, now: datetime) -> dict[str, Any]:
    from telemetry.carbon.site_signals import IntensityCurve
    from telemetry.forecasts import forecast_record, histories

    step_s = histories.step_s(feed)
    values: list[float | None] = []
    if step_s is not None:
        first_s = (now.timestamp() // step_s + 1) * step_s
        steps = min(288, max(1, round(histories.day_s(feed) / step_s)))
        end = datetime.fromtimestamp(first_s + steps * step_s, UTC)
        curve = IntensityCurve(feed.site, now, end, feed.signal, True)
        values = [curve.mean(first_s + i * step_s, first_s + (i + 1) * step_s, 0.5) for i in range(steps)]
    newest = feed.points.order_by("-start_at").first()
    return {
        "of": "carbon" if feed.signal != "price" else "price",
        "unit": f"{newest.currency}/kWh" if newest and feed.signal == "price" else "g/kWh",
        "site": feed.site.name,
        "signal": feed.signal,
        "model": feed.forecast_model or forecast_record.PROVIDER,
        "start_s": first_s if step_s is not None else None,
        "step_s": step_s,
        "values": values,
        "record": _record(forecast_record.newest(feed=feed)),
    }


def _record(rows: Iterable[ForecastScore]) -> list[dict[str, Any]]:
    fields = ("model", "quantile", "pinball", "mape", "coverage", "regret", "origins", "steps", "samples", "chosen")
    return [
        {**{field: getattr(row, field) for field in fields}, "scored_at_s": row.scored_at.timestamp()} for row in rows
    ]


def _show(row: dict[str, Any]) -> None:
    if row["of"] == "load":
        name = f"{row['service']}, {row['request_class'] or 'all classes'}"
        said = None not in row["rates_rps"]  # else too little was seen to know how far off it may be
        ahead = ", ".join("unknown" if r is None else f"{r:.2f}" for r in row["rates_rps" if said else "median_rps"])
        how = f"at most ({row['quantile']:.0%})" if said else "in the middle"
        click.echo(f"load of {name}: {ahead} requests/s {how}, by {row['model']}")
    else:
        known = [value for value in row["values"] if value is not None]
        range_text = f"{min(known):.3g} to {max(known):.3g} {row['unit']}" if known else "unknown"
        click.echo(f"{row['signal']} of {row['site']}: {range_text} in {len(known)} steps, by {row['model']}")
    for one in row["record"]:
        error = "" if one["mape"] is None else f", MAPE {one['mape']:.1%}"
        covered = "" if one["coverage"] is None else f", 10-90 % covers {one['coverage']:.0%}"
        regret = "" if one["regret"] is None else f", regret {one['regret']:.3g} {row['unit']}"
        loss = f"pinball {one['pinball']:.3g} at {one['quantile']:g}{error}{covered}{regret}, {one['samples']} steps"
        click.echo(f"  {'*' if one['chosen'] else ' '} {one['model']}: {loss}")
    if not row["record"]:
        click.echo("    no record yet: too little was measured for a back-test")
