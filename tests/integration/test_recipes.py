"""The recipe of a new controller, followed to the letter in a copy of the tree: its policy works in both worlds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import documents
from tests.documents import ROOT, Block

RECIPE = "## Add a controller, or another policy for a loop"
NAMED = re.compile(r"# (?P<path>[\w/]+\.py)\n")
RUN_HERE = "tests/integration/test_recipes.py runs it"


def blocks() -> list[Block]:
    """The recipe's blocks, in the page's order."""
    found = documents.blocks(ROOT / "docs" / "recipes.md", RECIPE)
    assert {block.language for block in found} <= {"python", "diff", "sh", "text"}, "a block of another kind"
    return found


def path_of(block: Block) -> str:
    """The file that a new file's first line names."""
    named = NAMED.match(block.text)
    assert named is not None, f"its first line is no path: {block.text[:80]}"
    return named["path"]


def runs_here(block: Block) -> bool:
    return RUN_HERE in (block.not_run or "")


@dataclass(frozen=True)
class Copy:
    """A copy of the repository, whose commands run its own code with this environment's tools."""

    folder: Path

    def run(self, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command in the copy's root; fails the test if the command fails."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        # Git must not take the copy for a part of a repository above it; a worker's variables are not the copy's.
        own = {"PATH": path, "PYTHONPATH": str(self.folder), "GIT_CEILING_DIRECTORIES": str(self.folder.parent)}
        own |= {"COLUMNS": "120", "PYTHONUTF8": "1"}  # of tables
        others = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GREENSERVE_"))}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=others | own,
            input=text,
            capture_output=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{text}\n{done.stdout}\n{done.stderr}"
        return done


@dataclass(frozen=True)
class Followed:
    """The copy after the recipe's last step, and what the commands printed."""

    copy: Copy
    printed: str


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """All steps, in the page's order."""
    copy = made(tmp_path_factory.mktemp("recipe") / "tree")
    printed = []
    for block in blocks():
        if block.language == "python":
            path = copy.folder / path_of(block)
            assert not path.exists(), f"{path} is no new file"
            path.write_text(block.text)
        elif block.language == "diff":
            copy.run("git", "apply", "-C1", text=block.text)
        elif runs_here(block):
            printed.append(copy.run("sh", "-e", text=block.text).stdout)
    lint(copy)
    return Followed(copy, "\n".join(printed))


def made(folder: Path) -> Copy:
    """Copies what git knows or would add."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    for name in names.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return Copy(folder)


def touched() -> list[str]:
    """The files that the recipe makes or edits."""
    new = [path_of(block) for block in blocks() if block.language == "python"]
    return new + [path for block in blocks() for path in re.findall(r"^\+\+\+ b/(\S+)$", block.text, re.M)]


def lint(copy: Copy) -> None:
    """`make lint` for what the recipe touches, but for the types."""
    copy.run("ruff", "format", "--check", *touched())
    copy.run("ruff", "check", *touched())
    copy.run(sys.executable, "scripts/house", "--check")
    copy.run(sys.executable, "-W", "ignore::RuntimeWarning", "manage.py", "makemigrations", "--check", "--dry-run")


@pytest.mark.slow("runs the tools and the commands of a copy of the repository")
def test_policy_and_its_knobs_are_listed_and_compared_when_the_recipe_is_followed(followed: Followed) -> None:
    assert re.search(r"^ *two_speed: .*clock=two_speed\b", followed.printed, re.M), followed.printed
    assert re.search(r"^ *clock_share: ", followed.printed, re.M), followed.printed
    clocks = re.search(r"^│ mean clock MHz +│ ([\d,.]+) .*\((\S+)x\).*\((\S+)x\)", followed.printed, re.M)
    assert clocks is not None, followed.printed
    assert float(clocks[2]) == pytest.approx(0.6, abs=0.05)
    assert float(clocks[3]) == pytest.approx(0.9, abs=0.05)


@pytest.mark.slow("checks types without a cache")
def test_types_hold_when_the_recipe_is_followed(followed: Followed) -> None:
    product = [path for path in touched() if not path.startswith("tests/")]
    followed.copy.run("mypy", "--no-error-summary", *product)


def test_each_command_of_the_recipe_is_run_or_says_why_not() -> None:
    found = blocks()
    assert sum(block.language == "python" for block in found) >= 4
    assert all(block.where or block.not_run for block in found if block.language == "sh")
    assert sum(map(runs_here, found)) >= 3
