"""The reader of YAML: within its limits whatever a text says, and no other reader in the product."""

import ast
import datetime
from pathlib import Path

import pytest

import core
from core import safe_yaml
from core.safe_yaml import BadYamlError, load

ROOT = Path(core.__file__).resolve().parent.parent
FOLDERS = ("core", "pools", "telemetry", "scheduler", "frontend", "greenserve")


def bomb(levels):
    """Each line names the one before ten times: 10**levels texts."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


def test_plain_values_are_read_when_a_text_is_one():
    assert load("a: [1, 0.5, on, x, null]\nb: 2026-01-02") == {
        "a": [1, 0.5, True, "x", None],
        "b": datetime.date(2026, 1, 2),
    }
    assert load("") is None
    assert load("base: &b {x: 1}\nown: {<<: *b, y: 2}") == {"base": {"x": 1}, "own": {"x": 1, "y": 2}}


REFUSED = {
    "billions of values by aliases": (bomb(9), r"line 6, column \d+: more than 500,000 values, aliases written out"),
    "an alias that names itself": ("a: &a [*a]", "line 1, column 8: an alias names itself"),
    "levels": ("[" * 60 + "]" * 60, "line 1, column 51: more than 50 levels"),
    "levels by aliases": (
        "a0: &a0 [x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 60)),
        "line 49, column .*: more than 50 levels",
    ),
    "levels by the thousand": ("[" * 100_000, "more than 50 levels"),
    "two equal keys": ("pue: 1.2\nname: x\npue: 9", "line 3, column 1: 'pue' stands here twice: keep one"),
    "two equal keys in a row": ("- {a: 1, a: 2}", "'a' stands here twice"),
    "a month that there is not": ("at: 2026-13-45", "month must be in 1..12"),
    "a number of 5,000 digits": ("n: " + "9" * 5_000, "integer string conversion"),
    "no number": ("n: .nan", "line 1, column 4: .nan is no finite number"),
    "a number without end": ("n: 1.0e+400", "1.0e.400 is no finite number"),
    "a Python object": ("!!python/object/apply:os.system [id]", "could not determine a constructor"),
    "bytes": ("a: !!binary aGk=", "could not determine a constructor"),
    "a set": ("!!set {a, b}", "could not determine a constructor"),
    "two documents": ("a: 1\n---\nb: 2", "but found another document"),
    "control characters": ("a: \x00", "special characters are not allowed"),
    "no YAML": ("a: [", "line 1, column 5: "),
    "keys that are lists": ("? [a]\n: b", "found unhashable key"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_text_is_refused_with_its_place_when_it_has(kind):
    text, words = REFUSED[kind]
    with pytest.raises(BadYamlError, match=words):
        load(text)


def test_text_is_refused_when_it_is_too_long(monkeypatch):
    monkeypatch.setattr(safe_yaml, "MOST_LETTERS", 10)
    with pytest.raises(BadYamlError, match="more than 10 letters: split it"):
        load("a" * 11)


def test_nothing_is_written_out_when_aliases_stand_for_too_much(monkeypatch):
    """Values are made of nodes only once the whole text is within the limits."""
    monkeypatch.setattr(safe_yaml, "value", lambda node: pytest.fail("values were made"))
    with pytest.raises(BadYamlError, match="aliases written out"):
        load(bomb(7))


READING = {"load", "safe_load", "load_all", "safe_load_all", "full_load", "unsafe_load", "compose", "parse"}


def readers(path):
    """Lines of a module that read YAML by themselves."""
    text = path.read_text(encoding="utf-8")
    if "yaml" not in text:  # to parse all of the product's modules takes seconds
        return
    for node in ast.walk(ast.parse(text)):
        imported = isinstance(node, ast.ImportFrom) and node.module == "yaml"
        of_yaml = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "yaml"
        if imported or (of_yaml and (node.attr in READING or node.attr.endswith("Loader"))):
            yield node.lineno


def test_no_other_module_reads_yaml(tmp_path):
    own = ROOT / "core" / "safe_yaml.py"
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if path != own
        for line in readers(path)
    ]
    assert found == [], "read YAML by core.safe_yaml"
    assert list(readers(own)), "the check finds what it looks for"
    planted = tmp_path / "planted.py"
    planted.write_text("import yaml\nyaml.safe_load('a: 1')\n")
    assert list(readers(planted)) == [2]
