"""The documentation's pages: what they name is there, and their commands have the options that they are given."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from greenserve.cli import cli
from tests import documents

# Where pages name code in backticks: `core/engine/engine_model.py`, `tests/unit/`.
CODE_PATH = re.compile(
    r"`((?:core|pools|telemetry|scheduler|frontend|greenserve|tests|benchmarks|scripts|docker|docs|scenarios|node)/[\w./-]+)`"
)
RUNS = {"files", "product"}

pages = pytest.mark.parametrize("page", documents.PAGES, ids=documents.name_of)


@pages
def test_links_lead_somewhere(page: Path) -> None:
    assert not [link for link in documents.links(page) if "://" not in link and not _leads(page, link)]


def _leads(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in documents.anchors(target))


@pages
def test_paths_of_code_are_there(page: Path) -> None:
    named = CODE_PATH.findall(page.read_text(encoding="utf-8"))
    assert not [path for path in named if not (documents.ROOT / path).exists()]


@pages
def test_shell_blocks_say_where_they_are_run(page: Path) -> None:
    shell = [block for block in documents.blocks(page) if block.language == "sh"]
    assert not [block.place for block in shell if not _runs(page, block.where) and not block.not_run]


def _runs(page: Path, where: str | None) -> bool:
    """The page of production is run on machines, by their names (tests/netns/page.py)."""
    if page.name == "production.md":
        return where is not None and (
            where == "copies" or re.fullmatch(r"(installs )?on [a-z\d, -]+", where) is not None
        )
    return where in RUNS


@pages
def test_commands_stand_in_shell_blocks(page: Path) -> None:
    prompt = re.compile(r"^(?:\$ |    )(?:\.venv/bin/)?(?:greenserve|curl|pip|make) .*", re.MULTILINE)
    prose = re.sub(r"^```sh\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert not prompt.findall(prose)


@pages
def test_greenserve_commands_have_their_options(page: Path) -> None:
    for block in documents.blocks(page):
        if block.language == "sh":
            for command in documents.greenserve_commands(block):
                _parse(cli, command.arguments, command.place)


def _parse(command: click.Command, arguments: tuple[str, ...], place: str) -> None:
    """Parses as click does, without reading the files that are named or running anything."""
    context, asks_help = click.Context(command, info_name=command.name), "--help" in arguments
    try:
        values, rest, _ = command.make_parser(context).parse_args(list(arguments))
    except click.UsageError as error:
        raise AssertionError(f"{place}: {command.name}: {error.format_message()}") from error
    if isinstance(command, click.Group):
        under = command.get_command(context, rest[0]) if rest else None
        alone = command.invoke_without_command and not rest
        assert under is not None or asks_help or alone, f"{place}: {command.name} has no command {rest[:1]}"
        if under is not None:
            _parse(under, tuple(rest[1:]), place)
        return
    assert not rest, f"{place}: {command.name} takes no {rest}"
    lacks = [one.name for one in command.params if one.required and values.get(one.name or "") in (None, ())]
    assert not lacks or asks_help, f"{place}: {command.name} lacks {lacks}"


def test_index_has_every_page() -> None:
    index = documents.ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in documents.links(index)}
    adrs = documents.ROOT / "docs" / "adr"
    assert not [
        documents.name_of(page) for page in documents.PAGES if page not in {*linked, index} and page.parent != adrs
    ]


PRINTED = "results.md"  # by `greenserve lab`
texts = [page for page in documents.PAGES if page.parent.name != "adr" and page.name != PRINTED]


@pytest.mark.parametrize("page", texts, ids=documents.name_of)
def test_page_ends_with_where_to_go(page: Path) -> None:
    *_, last = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert last == "Where to go next"
