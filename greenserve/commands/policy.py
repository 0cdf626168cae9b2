"""policy: which paper's system a service runs, knob by knob."""

from __future__ import annotations

import json
from typing import Any

import click

from greenserve.cli import fail

from .database import database


@click.command()
@click.argument("service", required=False)
@click.argument("name", required=False)
@click.argument("knobs", metavar="[KEY=VALUE ...]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--list", "listing", is_flag=True, help="List policies and knobs; needs no database.")
def policy(service: str | None, name: str | None, knobs: tuple[str, ...], as_json: bool, listing: bool) -> None:
    """Show the policy of SERVICE, or give it the policy NAME with some knobs set otherwise.

    A change takes effect within seconds where GreenServe runs: gateways and agents get the new policy, and all loops
    decide anew.
    Knobs that are not named are the preset's. Without SERVICE all services are shown.

    \b
    greenserve policy --list
    greenserve policy llama3-70b
    greenserve policy llama3-70b throttllem
    greenserve policy llama3-70b dynamollm clock=fixed shadow=false
    """
    from core.policy import live_presets
    from core.policy.presets import OLD_NAMES

    if listing:
        _list(as_json)
        return
    if name in OLD_NAMES:
        click.echo(f"greenserve: '{name}' is called {OLD_NAMES[name]} now", err=True)
        name = OLD_NAMES[name]
    try:
        given = {key: live_presets.parse(key, text) for key, text in map(_split, knobs)}
        if name is not None:
            live_presets.knobs(name, given)
    except ValueError as error:
        fail(f"{error}; see `greenserve policy --list`", 2)
    with database():
        rows = _change(service, name, given) if service and name else _shown(service)
    if as_json:
        click.echo(json.dumps(rows[0] if service else rows))
        return
    for row in rows:
        own = ", ".join(f"{key}={value}" for key, value in row["overrides"].items())
        click.echo(f"{row['service']}: {row['policy']}{f' with {own}' if own else ''}")
        if service:
            click.echo("".join(f"  {key} = {value}\n" for key, value in row["knobs"].items()), nl=False)


def _split(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign:
        raise ValueError(f"'{text}' is no knob: write KEY=VALUE")
    return key, value


def _list(as_json: bool) -> None:
    from core.policy.live_presets import LIVE, documented
    from core.policy.presets import DEFAULT

    rows = {name: {key: getattr(found, key) for key in documented()} for name, found in LIVE.items()}
    if as_json:
        click.echo(json.dumps({"policies": rows, "knobs": documented()}))
        return
    usual = rows[DEFAULT]
    click.echo(f"Policies, and where they differ from {DEFAULT}:")
    for name, row in rows.items():
        other = ", ".join(f"{key}={value}" for key, value in row.items() if value != usual[key])
        click.echo(f"  {name}: {other or 'the default'}")
    click.echo("Knobs:")
    for key, words in documented().items():
        click.echo(f"  {key}: {words}")


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
    from core.policy.live_presets import documented

    found = service.policy_knobs()
    return {
        "service": service.name,
        "policy": service.policy,
        "overrides": service.knobs,
        "knobs": {key: getattr(found, key) for key in documented()},
    }


def _change(name: str, policy_name: str, overrides: dict[str, Any]) -> list[dict[str, Any]]:
    """Stores the policy, and has the workers take it up now rather than when they next look."""
    import redis
    from django.core.exceptions import ValidationError
    from kombu.exceptions import OperationalError

    from greenserve import celery
    from pools.models import Service
    from scheduler import tasks
    from scheduler.control import service_policy as policies

    service = Service.objects.filter(name=name).first()
    if service is None:
        fail(_no_service(name))
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
