"""user: people and their tokens, without the page. The first administrator is made so."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

import click

from greenserve.cli import fail

from .database import database

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from pools.access.audit import Actor
    from pools.models import Site

P = ParamSpec("P")
ROLES = ("none", "viewer", "operator", "finance", "administrator")
RIGHTS = ("view", "operate", "finance", "administer")


@click.group()
def user() -> None:
    """Make and change people, and their access tokens for the REST API. Everything is on the audit trail.

    \b
    greenserve user create ada --role administrator
    greenserve user role nora operator --site ashburn
    greenserve user password ada
    greenserve user token nora --label nightly --right view --days 90
    """


def _command(work: Callable[P, None]) -> Callable[P, None]:
    """Runs the command with the database, and reports mistakes as one line."""

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with database():
            from django.core.exceptions import ValidationError

            try:
                work(*args, **kwargs)
            except ValidationError as error:
                found = error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
                fail("; ".join(f"{name}: {' '.join(words)}".lstrip(": ") for name, words in found.items()), 2)

    return run


sites_option = click.option(
    "--site", "sites", multiple=True, help="A site that it is for; may be repeated. Without: all."
)


@user.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_command
def list_people(as_json: bool) -> None:
    """List people with their role and sites."""
    from django.contrib.auth import get_user_model

    from pools.access import people

    rows = [people.shown(found) for found in get_user_model().objects.order_by("username")]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        sites = ", ".join(row["sites"]) or "all sites"
        click.echo(f"{row['username']}: {row['role']}, {sites}{'' if row['active'] else ', shut out'}")
    if not rows:
        click.echo("Nobody yet: greenserve user create NAME --role administrator")


@user.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True)
@click.option("--email", default="")
@click.option("--password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file with it.")
@sites_option
@_command
def create(name: str, role: str, email: str, password_file: Path | None, sites: tuple[str, ...]) -> None:
    """Create a person. Without a file a one-time password is made and printed, once."""
    from pools.access import people

    given = password_file.read_text().strip() if password_file is not None else None
    _, password = people.create(_actor(), name, role, _sites(sites), email, given)
    click.echo(f"{name} is {role}." + (f" One-time password: {password}" if password else ""))


@user.command()
@click.argument("name")
@click.argument("role", type=click.Choice(ROLES))
@sites_option
@_command
def role(name: str, role: str, sites: tuple[str, ...]) -> None:
    """Give NAME the ROLE, at all sites or some. A change revokes NAME's access tokens."""
    from pools.access import people

    people.set_role(_actor(), _person(name), role, _sites(sites))
    click.echo(f"{name} is {role} now.")


@user.command()
@click.argument("name")
@click.option("--keep-two-step", is_flag=True, help="Leave two-step sign-in as it is.")
@_command
def password(name: str, keep_two_step: bool) -> None:
    """Make a one-time password for who has lost theirs. It ends NAME's sessions and revokes their access tokens.
    Two-step sign-in is taken off, for its app may be lost too.
    """
    from pools.access import people

    found = _person(name)
    given = people.reset_password(_actor(), found)
    if not keep_two_step:
        people.reset_codes(_actor(), found)
    click.echo(f"One-time password of {name}: {given}")


@user.command()
@click.argument("name")
@click.option("--label", required=True, help="What the token is for.")
@click.option("--right", "rights", type=click.Choice(RIGHTS), multiple=True, default=("view",), show_default=True)
@click.option("--days", type=click.IntRange(1, 3650), default=90, show_default=True, help="How long it is valid.")
@sites_option
@_command
def token(name: str, label: str, rights: tuple[str, ...], days: int, sites: tuple[str, ...]) -> None:
    """Make an access token of NAME for the REST API. It alone is printed, once."""
    from django.utils import timezone

    from pools.access import people

    ends = timezone.now() + timedelta(days=days)
    _, secret = people.new_token(_actor(), _person(name), label, rights, _sites(sites), ends)
    click.echo(secret)


@user.command("shut-out")
@click.argument("name")
@_command
def shut_out(name: str) -> None:
    """End NAME's sessions and tokens at once; they cannot sign in any more."""
    from pools.access import people

    people.set_active(_actor(), _person(name), False)
    click.echo(f"{name} is out.")


def _actor() -> Actor:
    from pools.access.audit import Actor

    return Actor(channel="command")


def _person(name: str) -> User:
    from django.contrib.auth import get_user_model

    found = get_user_model().objects.filter(username=name).first()
    return found if found is not None else fail(f"there is nobody called '{name}'; see `greenserve user list`", 2)


def _sites(names: tuple[str, ...]) -> list[Site]:
    from pools.models import Site

    found = list(Site.objects.filter(name__in=names))
    missing = set(names) - {site.name for site in found}
    if missing:
        known = ", ".join(Site.objects.values_list("name", flat=True)) or "none yet"
        fail(f"there is no site '{sorted(missing)[0]}'; known are: {known}", 2)
    return found
