"""policy: which paper's system a service runs, knob by knob."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from greenserve.cli import fail

from .database import database

if TYPE_CHECKING:
    from core.policy.presets import Policy


@click.command()
@click.argument("service", required=False)
@click.argument("name", required=False)
@click.argument("knobs", metavar="[KEY=VALUE ...]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--preview", is_flag=True, help="Show what the change would draw, emit and cost, and change nothing.")
@click.option("--yes", is_flag=True, help="Change it without asking, also at a terminal.")
@click.option("--list", "listing", is_flag=True, help="List policies and knobs; needs no database.")
def policy(
    service: str | None,
    name: str | None,
    knobs: tuple[str, ...],
    as_json: bool,
    preview: bool,
    yes: bool,
    listing: bool,
) -> None:
    """Show the policy of SERVICE, or give it the policy NAME with some knobs set otherwise.

    A change takes effect within seconds where GreenServe runs and the control mode is act: gateways and agents get the
    new policy, and all loops decide anew. At a terminal it is shown first what the change would draw, and asked.
    Knobs that are not named are the preset's. Tuning is named RECORD.FIELD. Without SERVICE all services are shown.

    \b
    greenserve policy --list
    greenserve policy llama3-70b
    greenserve policy llama3-70b throttllem
    greenserve policy llama3-70b dynamollm clock=fixed shadow=false dynamo.wave=4
    """
    from core.policy.presets import OLD_NAMES
    from core.policy.setting_texts import by_name, parse, stored, text_of, without_effect

    if listing:
        _list(as_json)
        return
    if name in OLD_NAMES:
        click.echo(f"greenserve: '{name}' is called {OLD_NAMES[name]} now", err=True)
        name = OLD_NAMES[name]
    try:
        given = stored({key: parse(key, text) for key, text in map(split_setting, knobs)})
        for words in without_effect(given):
            click.echo(f"greenserve: {words}", err=True)
    except ValueError as error:
        fail(f"{error}; see `greenserve policy --list`", 2)
    with database():
        if service and name and (preview or (sys.stdin.isatty() and not yes)):
            _preview(service, name, given, as_json)
            if preview or not click.confirm("Change it?"):
                return
        rows = change(service, name, given) if service and name else _shown(service)
    if as_json:
        click.echo(json.dumps(rows[0] if service else rows))
        return
    for row in rows:
        own = ", ".join(f"{key}={text_of(value) or 'none'}" for key, value in by_name(row["overrides"]).items())
        click.echo(f"{row['service']}: {row['policy']}{f' with {own}' if own else ''}")
        acting = row["in_force"]
        if (acting["policy"], acting["overrides"]) != (row["policy"], row["overrides"]):
            click.echo(f"  in force: {acting['policy']}; the control mode is not act (docs/operating.md)")
        if service:
            click.echo("".join(f"  {key} = {value}\n" for key, value in row["knobs"].items()), nl=False)


def split_setting(text: str) -> tuple[str, str]:
    """Reads KEY=VALUE. Raises ValueError."""
    key, sign, value = text.partition("=")
    if not sign:
        raise ValueError(f"'{text}' is no knob: write KEY=VALUE")
    return key, value


def _list(as_json: bool) -> None:
    from core.policy.presets import DEFAULT, PRESETS
    from core.policy.setting_texts import documented

    words = documented()
    rows = {name: _values(found) for name, found in PRESETS.items()}
    if as_json:
        click.echo(json.dumps({"policies": rows, "knobs": words}))
        return
    usual = rows[DEFAULT]
    click.echo(f"Policies, and where they differ from {DEFAULT}:")
    for name, row in rows.items():
        other = ", ".join(f"{key}={value}" for key, value in row.items() if value != usual[key])
        click.echo(f"  {name}: {other or 'the default'}")
    for title, tuning in (("Knobs", False), ("Tuning", True)):
        click.echo(f"{title}:")
        for key, text in words.items():
            if ("." in key) == tuning:
                click.echo(f"  {key}: {text}")


def _values(found: Policy) -> dict[str, Any]:
    """Returns the value of every setting by its name."""
    from core.policy.setting_texts import SETTINGS, value_of

    return {name: value_of(found, name) for name in SETTINGS}


def _shown(name: str | None) -> list[dict[str, Any]]:
    from pools.models import Service

    services = list(Service.objects.filter(name=name) if name else Service.objects.all())
    if name and not services:
        fail(_no_service(name))
    return [_row(service) for service in services]


def _no_service(name: str) -> str:
    from pools.models import Service

    known = ", ".join(Service.objects.values_list("name", flat=True)) or "none yet"
    return f"there is no service '{name}'; known are: {known}"


def _row(service: Any) -> dict[str, Any]:
    return {
        "service": service.name,
        "policy": service.policy,
        "overrides": service.knobs,
        "knobs": _values(service.configured_policy()),
        "in_force": {"policy": service.own_policy().name, "overrides": dict(service.own_policy().overrides)},
    }


def _preview(name: str, policy_name: str, overrides: dict[str, Any], as_json: bool) -> None:
    """Writes what the policy would draw, emit and cost; takes back what it does for that."""
    from dataclasses import asdict

    from django.core.exceptions import ValidationError

    from frontend.formats import UNKNOWN, si
    from scheduler.control import service_policy as policies
    from scheduler.operations import previews

    service = _service(name)
    try:
        found = previews.of(service, lambda: policies.change(service, policy_name, overrides))
    except ValidationError as error:
        fail(" ".join(error.messages), 2)
    if as_json:
        click.echo(json.dumps({**asdict(found), "change_w": found.change_w}))
        return
    click.echo(f"now, metered: {si(found.metered_w, 'W')}")
    for words, side in (("now", found.now), ("then", found.then)):
        cost = UNKNOWN if side.cost_per_h is None else f"{side.cost_per_h:.3g} {side.currency}"
        fleet = f"{side.instances} instances, {side.gpus} GPUs"
        power, carbon = si(side.power_w, "W"), si(side.carbon_g_per_h, "g")
        click.echo(f"{words}, predicted: {side.policy} ({side.partition}), {fleet}, {power}, {carbon}CO2e/h, {cost}/h")
    for note in found.notes:
        click.echo(note)


def _service(name: str) -> Any:
    from pools.models import Service

    service = Service.objects.filter(name=name).first()
    if service is None:
        fail(_no_service(name))
    return service


def change(name: str, policy_name: str, overrides: dict[str, Any]) -> list[dict[str, Any]]:
    """Stores the policy, and has the workers take it up now rather than when they next look."""
    import redis
    from django.core.exceptions import ValidationError
    from kombu.exceptions import OperationalError

    from greenserve import celery
    from scheduler import tasks
    from scheduler.control import service_policy as policies

    service = _service(name)
    try:
        policies.change(service, policy_name, overrides)
    except ValidationError as error:
        fail(" ".join(error.messages), 2)
    celery.app.set_current()
    try:
        tasks.publish.apply_async(expires=60, retry=False)
    except (OperationalError, redis.RedisError, OSError) as error:
        click.echo(f"greenserve: stored; it takes effect when GreenServe runs (Redis: {error})", err=True)
    return [_row(service)]
