"""scripts/words: what it finds, and what it lets pass."""

import importlib.util
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "words"


@pytest.fixture(scope="module")
def words() -> ModuleType:
    loader = SourceFileLoader("words_script", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path, words: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of its own, with one file."""
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "tracked", lambda root: [path for path in files(root) if words.looked_at(path)])
    put(tmp_path, '"""Reads meters."""\n\nreported = 1\n')
    return tmp_path


def files(tree: Path) -> list[str]:
    return sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())


def put(tree: Path, text: str, path: str = "core/meters.py") -> None:
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_text(text)


def places(words: ModuleType, tree: Path, rule: str) -> list[str]:
    return [f"{place.path}:{place.line}" for place in words.survey(tree, filter(words.looked_at, files(tree)))[rule]]


def test_tree_passes_when_no_word_is_in_it(words: ModuleType, tree: Path) -> None:
    assert words.main([]) == 0


def test_planted_word_fails_and_names_its_place_and_the_remedy(
    words: ModuleType, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tree, '"""Reads meters."""\n\ntold = 1\n')
    assert words.main([]) == 1
    said = capsys.readouterr().out
    assert "'told': 1. Remedy: write decisions" in said
    assert "core/meters.py:3: told = 1" in said


def test_twenty_places_are_shown_when_there_are_more(
    words: ModuleType, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tree, "told = 1\n" * 25)
    words.main([])
    said = capsys.readouterr().out
    assert said.count("core/meters.py:") == 20
    assert "and 5 more: scripts/words --places told" in said


def test_name_in_data_of_the_first_version_passes(words: ModuleType, tree: Path) -> None:
    put(tree, 'GIVEN_0_1 = "told"\n')
    assert words.main([]) == 0


def test_places_are_listed_by_rule_and_folder(
    words: ModuleType, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tree, "told = 1\n")
    put(tree, "Nobody is told.\n", "docs/alerts.md")
    assert words.main(["--places", "told"]) == 0
    assert capsys.readouterr().out == "core/meters.py:1: told = 1\ndocs/alerts.md:1: Nobody is told.\n"
    assert words.main(["--places", "told", "docs"]) == 0
    assert capsys.readouterr().out == "docs/alerts.md:1: Nobody is told.\n"
    assert words.main(["--places", "unheard"]) == 2


def test_glossary_has_another_word_for_each_that_is_counted(words: ModuleType) -> None:
    _, _, banned = (SCRIPT.parents[1] / "docs/glossary.md").read_text().partition("## Words that we do not use")
    listed = {row.split("|")[1].split("(")[0].strip(" ,") for row in banned.splitlines() if row.startswith("| ")}
    every = {word.strip() for words_of_row in listed for word in words_of_row.split(",")}
    assert {*words.INVENTED, *words.MEANINGS} <= every


@pytest.mark.parametrize("name", ["told", "_told_s", "bulk_told", "toldBy", "Told", "ToldOnce", "wasTold", "TOLD_S"])
def test_word_is_found_when_it_is_part_of_a_name(words: ModuleType, tree: Path, name: str) -> None:
    put(tree, f"{name} = 1\n")
    assert places(words, tree, "told") == ["core/meters.py:1"]


@pytest.mark.parametrize(
    "name", ["untold", "tolds", "workbook", "deskew", "history", "delegates", "restore", "reached"]
)
def test_nothing_is_found_when_letters_stand_in_another_word(words: ModuleType, tree: Path, name: str) -> None:
    put(tree, f"{name} = 1\n")
    assert all(not places(words, tree, rule) for rule in (*words.INVENTED, *words.MEANINGS))


@pytest.mark.parametrize(
    ("rule", "text", "count"),
    [
        ("rests", "rests = True\n", 1),
        ("rests", "# the loop rests\n", 1),
        ("rests", "# what the figure rests on\n", 0),
        ("reach", "known = reach()\n", 1),
        ("reach", "# the role does not reach so far\n", 1),
        ("reach", "# a folder that both reach\n", 0),
    ],
)
def test_ordinary_word_counts_in_its_wrong_meaning_alone(
    words: ModuleType, tree: Path, rule: str, text: str, count: int
) -> None:
    put(tree, text)
    assert len(places(words, tree, rule)) == count


def test_files_are_looked_at_by_what_they_are(words: ModuleType, tree: Path) -> None:
    looked_at = [
        "frontend/templates/a.html",
        "frontend/static/frontend/app.js",
        "docs/alerts.md",
        "tests/unit/story.py",
    ]
    left = [
        *("docs/glossary.md", "CHANGELOG.md", "pools/migrations/0001_initial.py", "tests/fixtures/a.md"),
        *("frontend/static/plotly/plotly.js", "pools/demo/day.csv"),
    ]
    for path in (*looked_at, *left):
        put(tree, "told\n", path)
    assert [place.split(":")[0] for place in places(words, tree, "told")] == sorted(looked_at)
    assert places(words, tree, "story") == ["tests/unit/story.py:1"]


def test_class_name_counts_beyond_one_for_each_folder(words: ModuleType, tree: Path) -> None:
    for path in ("core/a.py", "core/b.py", "pools/a.py"):
        put(tree, "class Kind:\n    class State:\n        pass\n", path)
    assert places(words, tree, "class Kind") == ["core/b.py:1"]
    assert places(words, tree, "class State") == ["core/b.py:2"]


def test_gateway_has_the_tables_name_for_the_same_thing(words: ModuleType, tree: Path) -> None:
    for path in ("pools/models/serving.py", "pools/gateway/fleet/instance.py", "pools/gateway/fleet/view.py"):
        put(tree, "class Instance:\n    pass\n", path)
    assert places(words, tree, "class Instance") == ["pools/models/serving.py:1"]


@pytest.mark.parametrize(
    ("docstring", "rule"),
    [
        ("Of one that waits: whether it has its cache here.", "fragment"),
        ("Whether it is there.", "fragment"),
        ("What a request is and was.", "fragment"),
        ("None: not known.", "fragment"),
        ("The mean power of a node.", "verbless"),
        ("The layout that carries it; None: there is none.", "verbless"),
        ("Requests that have ended.", "verbless"),
        ("Returns the mean power.", None),
        ("What is gone is unknown.", None),
        ("The lease is over.", None),
        ("Runs one loop's epoch.", None),
        ("A client that has left is counted.", None),
        ("Measure an engine.", None),
    ],
)
def test_docstring_is_judged_by_the_verb_of_its_first_sentence(
    words: ModuleType, tree: Path, docstring: str, rule: str | None
) -> None:
    put(tree, f'def power_w() -> float:\n    """{docstring}"""\n    return 1.0\n')
    for each in ("fragment", "verbless"):
        assert len(places(words, tree, each)) == (each == rule)


NOUNS = '''"""Meters of nodes."""


class Meter:
    """One meter."""

    @property
    def power_w(self) -> float:
        """The mean power."""
        return 1.0


TEXT = """
Of no docstring.
"""
'''


def test_noun_is_enough_for_what_is_a_thing(words: ModuleType, tree: Path) -> None:
    put(tree, NOUNS)
    assert not places(words, tree, "fragment")
    assert not places(words, tree, "verbless")


FUNCTIONS = '''def bare(x: float) -> float:
    return x


def arrays(x: NDArray) -> None:
    """Sorts `x`."""


def shaped(x: NDArray) -> None:
    """Sorts `x`, of shape (n,)."""


def strict(x: float) -> None:
    """Checks `x`."""
    raise ValueError(x)


def clear(x: float) -> None:
    """Checks `x`. Raises ValueError."""
    raise ValueError(x)


def _own() -> None: ...
'''


def test_public_functions_of_core_say_shapes_and_errors(words: ModuleType, tree: Path) -> None:
    put(tree, FUNCTIONS)
    assert places(words, tree, "core undocumented") == ["core/meters.py:1"]
    assert places(words, tree, "core shapes") == ["core/meters.py:5"]
    assert places(words, tree, "core raises") == ["core/meters.py:13"]


def test_what_git_ignores_is_not_looked_at(words: ModuleType, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    put(tmp_path, "", "core/new.py")
    put(tmp_path, "", "core/ignored.py")
    assert words.tracked(tmp_path) == ["core/new.py"]
