"""apply: a fleet as YAML files, compared with the one that runs, and carried out through REST."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from greenserve import env
from greenserve.cli import fail

from .secret_files import token_option

if TYPE_CHECKING:
    from greenserve.apply.document import Wanted
    from greenserve.apply.execution import Outcome
    from greenserve.apply.rendering import ShownPlan
    from greenserve.client import Client

CHANGES = 2  # the exit status of --plan where something would change
LABEL = "greenserve apply"
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Apply(click.Command):
    """Ends with 1 where it is called wrongly, since 2 says that something would change."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.show()
            raise SystemExit(1) from None


@click.command(cls=_Apply)
@click.argument("files", nargs=-1, type=FILE)
@click.option(
    "--plan", "only_plan", is_flag=True, help="Only show the plan; exit status 2 where something would change."
)
@click.option("--prune", is_flag=True, help="Also delete rows of the files' kinds that no file names.")
@click.option("--yes", is_flag=True, help="Carry the plan out without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--export", is_flag=True, help="Print the present fleet as such a file.")
@click.option("--kind", "kinds", multiple=True, help="With --export: only this kind; may be repeated.")
@click.option("--url", help="Of the dashboard; GREENSERVE_URL, or this machine's if it is not given.")
@token_option
@click.option("--as", "person", help="On the machine of GreenServe, without a token: as this person.")
def apply(
    files: tuple[Path, ...],
    only_plan: bool,
    prune: bool,
    yes: bool,
    as_json: bool,
    export: bool,
    kinds: tuple[str, ...],
    url: str | None,
    token: str | None,
    person: str | None,
) -> None:
    """Make the fleet what FILES say: show what would change and its consequences, ask, and carry it out through REST.

    Only the kinds, rows and fields that the files name are touched. docs/apply.md describes the files.

    \b
    greenserve apply --export > fleet.yaml
    greenserve apply fleet.yaml --plan
    greenserve apply fleet.yaml
    greenserve apply sites/*.yaml tenants.yaml --prune --yes
    """
    if export == bool(files):
        fail("give files, or --export alone")
    wanted = None if export else _wanted(files, as_json)
    with client_of(url, token, person, LABEL) as api, _errors(as_json):
        if wanted is None:
            _export(api, kinds)
            return
        shown = _planned(api, wanted, prune, as_json)
        if only_plan or not shown.plan.changes:
            _say_plan(shown, as_json)
            raise SystemExit(CHANGES if shown.plan.changes else 0)
        _agreed(shown, yes, as_json)
        _carry_out(api, shown, as_json)


def _wanted(files: tuple[Path, ...], as_json: bool) -> Wanted:
    from greenserve.apply.document import DocumentError, Fault, read
    from greenserve.apply.yaml_values import Mark

    texts = []
    for path in files:
        try:
            texts.append((str(path), path.read_text(encoding="utf-8-sig")))
        except UnicodeDecodeError:
            _faulty([Fault(Mark(str(path), 1, 1), "", "the file is not UTF-8: save it as such")], as_json)
    try:
        return read(texts)
    except DocumentError as error:
        _faulty(error.faults, as_json)


def _faulty(faults: Any, as_json: bool) -> NoReturn:
    """Ends the program with all that is wrong; nothing was changed."""
    from greenserve.apply.rendering import faults_json

    if as_json:
        click.echo(json.dumps({"faults": faults_json(faults)}, ensure_ascii=False))
    for fault in faults if not as_json else ():
        click.echo(str(fault), err=True)
    fail(f"{len(faults)} {'fault' if len(faults) == 1 else 'faults'}; nothing was changed")


@contextmanager
def client_of(url: str | None, token: str | None, person: str | None, label: str) -> Iterator[Client]:
    """Yields a client of the API: with the token that is given, or on this machine with one of its own.

    Args:
        label: Of a token of its own, as the audit trail has it.
    """
    config = env.read()
    address = url or config.api_url
    secret = token or (config.api_token.reveal() if config.api_token is not None else None)
    if secret is not None and person is not None:
        fail("--as is for this machine without a token: leave one of both out")
    if secret is None and address is not None:
        fail(f"give an access token for {address}, by GREENSERVE_TOKEN or --token; the page Account makes one")
    target = address or env.local_url(config.web_host, config.web_port)
    if secret is not None:
        with _connected(target, secret) as api:
            yield api
        return
    from greenserve.commands.local_token import local_token

    with local_token(person, label) as made, _connected(target, made, as_proxy=config.https) as api:
        yield api


def _connected(address: str, token: str, *, as_proxy: bool = False) -> Client:
    """`as_proxy`: the web process sends on to https what does not come from a proxy; this stays on the machine."""
    import httpx2

    from greenserve.client import Client

    class Proxy(httpx2.HTTPTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            request.headers["X-Forwarded-Proto"] = "https"
            return super().handle_request(request)

    try:
        return Client(address, token, inner=Proxy() if as_proxy else None)
    except ValueError as error:
        fail(str(error))


@contextmanager
def _errors(as_json: bool) -> Iterator[None]:
    from greenserve.apply.remote import OtherVersionError
    from greenserve.client import GreenServeError, NoAnswerError

    try:
        yield
    except NoAnswerError as error:
        fail(f"{error}. Start GreenServe there (`greenserve up`), or give its address by --url; nothing was changed")
    except (GreenServeError, OtherVersionError) as error:
        fail(f"{error}; nothing was changed")


def _export(api: Client, kinds: tuple[str, ...]) -> None:
    from greenserve.apply import remote
    from greenserve.apply.document import nearest
    from greenserve.apply.export import text_of
    from greenserve.apply.kinds import KINDS

    for name in kinds:
        if name not in KINDS:
            fail(f"--kind {name}: there is no such kind; {nearest(name, KINDS)}")
    click.echo(text_of(remote.read(api, kinds or KINDS)), nl=False)


def _planned(api: Client, wanted: Wanted, prune: bool, as_json: bool) -> ShownPlan:
    """Returns the plan with its consequences; ends the program where it cannot be carried out."""
    from greenserve.apply import check, remote
    from greenserve.apply.plan import compare, needed_kinds
    from greenserve.apply.rendering import ShownPlan

    present = remote.read(api, needed_kinds(wanted, prune))
    plan = compare(wanted, present, prune)
    if faults := check.faults(wanted, present, plan):
        _faulty(faults, as_json)
    untried, uncertain = check.checked_when_made(plan), check.uncertain(plan)
    said = remote.consequences(api, plan, untried)
    shown = ShownPlan(plan, said, untried, uncertain, check.dependants(plan, present))
    if refused := remote.refused(plan, said, uncertain):
        if not as_json:
            _say_plan(shown, as_json)
        _faulty(refused, as_json)
    return shown


def _say_plan(shown: ShownPlan, as_json: bool) -> None:
    from greenserve.apply import rendering

    if as_json:
        click.echo(json.dumps({"plan": rendering.as_json(shown)}, ensure_ascii=False))
        return
    for line in rendering.lines(shown):
        click.echo(line)


def _agreed(shown: ShownPlan, yes: bool, as_json: bool) -> None:
    """Shows the plan and asks; ends the program where nobody agrees. Deletions are agreed to by kind and count."""
    from greenserve.apply import rendering

    if not as_json:
        _say_plan(shown, as_json)
    if yes:
        return
    if as_json or not is_asked():
        if as_json:
            _say_plan(shown, as_json)
        fail("nothing was changed, since nobody can be asked here: give --yes to carry the plan out")
    deletions = rendering.deletions(shown.plan)
    for kind, count in deletions.items():
        if click.prompt(f"To delete them, type '{count} {kind}'", default="", show_default=False) != f"{count} {kind}":
            fail("nothing was changed")
    if not deletions and not click.confirm("Carry it out?"):
        fail("nothing was changed")


def is_asked() -> bool:
    """Says whether a person can be asked: at a terminal."""
    return sys.stdin.isatty()


def _carry_out(api: Client, shown: ShownPlan, as_json: bool) -> None:
    from greenserve.apply import rendering
    from greenserve.apply.execution import carry_out

    outcome: Outcome = carry_out(
        api, shown.plan, lambda change: None if as_json else click.echo(rendering.done_line(change))
    )
    if as_json:
        found = {"plan": rendering.as_json(shown), "outcome": rendering.outcome_json(outcome)}
        click.echo(json.dumps(found, ensure_ascii=False))
    for line in rendering.outcome_lines(outcome) if not as_json else ():
        click.echo(line, err=bool(outcome.error))
    raise SystemExit(1 if outcome.error else 0)
