"""Reads the pages of the documentation: their code blocks, links and commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile, groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(
    sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])
)
_BLOCK = re.compile(
    r"^(?:<!-- (?P<how>run|not run): (?P<where>[^\n]+?) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=.*", re.DOTALL)
_TOOLS = frozenset(("greenserve", ".venv/bin/greenserve"))


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `where` it is run, such as "files"; None with the reason in `not_run`, or without either."""

    page: Path
    line: int
    language: str
    text: str
    where: str | None
    not_run: str | None

    @property
    def place(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """One call of `greenserve` in a block: its arguments after the program's name."""

    place: str
    arguments: tuple[str, ...]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, section: str = "") -> list[Block]:
    """Returns the page's fenced blocks in their order; with `section`, a heading as it is written, those under it."""
    text = page.read_text(encoding="utf-8")
    begin = text.index(f"{section}\n") if section else 0
    end = text.find("\n## ", begin) if section else -1
    return [
        Block(
            page,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            found["where"] if found["how"] == "run" else None,
            found["where"] if found["how"] == "not run" else None,
        )
        for found in _BLOCK.finditer(text, begin, len(text) if end < 0 else end)
    ]


def greenserve_commands(block: Block) -> Iterator[Command]:
    """Yields the block's calls of `greenserve`, also those in a pipe, after `&&` or inside `$( )`."""
    for words in _simple_commands(block.text):
        call = list(dropwhile(_ASSIGNMENT.fullmatch, words))
        if call and call[0] in _TOOLS:
            yield Command(block.place, tuple(call[1:]))


def _simple_commands(script: str) -> Iterator[list[str]]:
    """Yields the words of each command: what stands between line ends, pipes, brackets, redirections and `;`."""
    pending = ""
    for line in script.splitlines():
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        lexer = shlex.shlex(pending + line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            tokens = list(lexer)
        except ValueError:  # a quotation goes on in the next line
            pending += line + "\n"
            continue
        pending = ""
        for separates, words in groupby(tokens, lambda token: set(token) <= set("();<>|&")):
            if not separates:
                yield list(words)


def links(page: Path) -> Iterator[str]:
    """Yields the targets of the page's links and pictures, those in code left out."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    for found in _LINK.finditer(re.sub(r"`[^`\n]*`", "", text)):
        yield found[1] or found[2]


def anchors(page: Path) -> set[str]:
    """Returns the page's anchors, as GitHub makes them from headings."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    found: dict[str, int] = {}
    for heading in _HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {
        anchor if not again else f"{anchor}-{again}" for anchor, count in found.items() for again in range(count + 1)
    }
