"""engine publish: measured profiles of a file go to a running GreenServe, through REST."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from greenserve.cli import fail
from greenserve.commands.secret_files import token_option

if TYPE_CHECKING:
    from greenserve.client.models import BroughtIn

LABEL = "greenserve engine publish"


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--keep", is_flag=True, help="Store the versions, and publish none of them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--url", help="Of the dashboard; GREENSERVE_URL, or this machine's if it is not given.")
@token_option
@click.option("--as", "person", help="On the machine of GreenServe, without a token: as this person.")
def publish(file: Path, keep: bool, as_json: bool, url: str | None, token: str | None, person: str | None) -> None:
    """Bring in the profiles of FILE (.csv or .json, as `greenserve node profile` writes it) and publish them.

    Decisions go by them within seconds. Of a configuration the version that was published before is withdrawn; what is
    there already is not stored again.

    \b
    greenserve engine publish profile.csv
    """
    found = send(file, publish=not keep, url=url, token=token, person=person)
    if as_json:
        shown = [{"id": one.id, "version": one.version, "published": bool(one.published_at)} for one in found.profiles]
        click.echo(json.dumps({"created": found.created, "profiles": shown}))
        return
    show(found)


def show(found: BroughtIn) -> None:
    """Writes a line for each version."""
    for one in found.profiles:
        state = "published" if one.published_at is not None else "stored"
        click.echo(f"{state}: {one.model} on {one.tp} x {one.gpu_type} ({one.engine}), version {one.version[:12]}")
    click.echo(f"{found.created} of {len(found.profiles)} versions are new")


def send(
    file: Path, *, publish: bool, url: str | None = None, token: str | None = None, person: str | None = None
) -> BroughtIn:
    """Brings a file's profiles in, all or none. Ends the command where that fails, and says why."""
    from core.engine.profiles import ProfileError, rows_of_json
    from greenserve.client import GreenServeError, NoAnswerError
    from greenserve.commands.apply import client_of

    try:
        text = file.read_text(encoding="utf-8-sig")
        rows = [dict(row) for row in rows_of_json(text)] if file.suffix.lower() == ".json" else None
    except UnicodeDecodeError:
        fail(f"{file}: the file is not UTF-8: save it as such")
    except ProfileError as error:
        fail(f"{file}: {error}; nothing was changed")
    try:
        with client_of(url, token, person, LABEL) as api:
            if rows is None:
                return api.engine_profiles.create(csv=text, publish=publish)
            return api.engine_profiles.create(rows=rows, publish=publish)
    except NoAnswerError as error:
        fail(f"{error}. Start GreenServe there (`greenserve up`), or give its address by --url; nothing was changed")
    except GreenServeError as error:
        fail(f"{error}; nothing was changed")
