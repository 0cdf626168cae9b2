"""Machine code is kept by what the source says, not by where it lies."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import pytest
from numba.core.dispatcher import Dispatcher

from core import compiled
from core.compiled import OURS, ByContent, sources

USERS = [
    ".".join(path.relative_to(OURS.parent).with_suffix("").parts)
    for path in sorted(OURS.rglob("*.py"))
    if "import compiled\n" in path.read_text()
]


def function(x: float) -> float:
    return x


def located(path: Path) -> str | None:
    found = ByContent.from_function(function, str(path))
    return None if found is None else str(found.get_cache_path())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(compiled, "OURS", tmp_path)
    return tmp_path


def source(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_two_checkouts_share_a_folder_when_their_sources_are_equal(home: Path) -> None:
    one, two = (source(home / checkout / "kernel.py", "x = 1\n") for checkout in ("one", "two"))
    assert located(one) == located(two)
    assert Path(str(located(one))).is_relative_to(home)
    two.write_text("x = 2\n")
    assert located(one) != located(two)


def test_what_a_file_imports_from_others_with_compiled_functions_counts_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "OURS", home / "core")
    mark = "from core.compiled import compiled\n"
    folder = home / "core"
    top = source(folder / "top.py", f"{mark}from core.middle import twice\nfrom core.plain import name\n")
    (folder / "middle.py").write_text(f"{mark}from core.below import once\n")
    (folder / "below.py").write_text(mark)
    (folder / "plain.py").write_text("name = 1\n")
    before = located(top)
    (folder / "plain.py").write_text("name = 2\n")
    assert located(top) == before
    (folder / "below.py").write_text(f"{mark}x = 2\n")
    assert located(top) != before


def test_numba_keeps_it_elsewhere_when_configured_so_or_when_home_cannot_be_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source(home / "checkout" / "kernel.py", "x = 1\n")
    assert located(home / "missing.py") is None
    with monkeypatch.context() as patch:
        patch.setattr(numba.config, "CACHE_DIR", "/elsewhere")
        assert located(path) is None
    monkeypatch.setenv("HOME", str(path))  # a file
    assert located(path) is None


def test_functions_of_others_are_left_to_numba() -> None:
    assert located(Path(numba.__file__)) is None


def test_one_version_serves_all_values_of_a_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    wider = compiled.compiled(lambda n, by: n + by)

    def function() -> int:
        n = -1
        for by in range(3):
            n = wider(n, by)
        return int(wider(n, 7) + wider(n, by=8))

    assert compiled.compiled(function)() == 2 * 2 + 7 + 8
    assert wider.signatures == [(numba.int64, numba.int64)]


@pytest.mark.parametrize("name", USERS)
def test_compiled_functions_use_only_what_the_files_define_that_name_their_folder(name: str) -> None:
    module = importlib.import_module(name)
    own = set().union(*(_assigned(path) for path in sources(Path(str(module.__file__)))))
    functions = [value for value in vars(module).values() if isinstance(value, Dispatcher)]
    assert functions
    for dispatcher in functions:
        code = dispatcher.py_func.__code__
        foreign = [g for g in code.co_names if g in vars(module) and g not in own and not _fixed(vars(module)[g])]
        assert not foreign, f"{name}.{dispatcher.py_func.__name__} uses {foreign} of another file"


def _assigned(path: Path) -> set[str]:
    """What the file defines at its top level."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        for inner in ast.walk(node) if isinstance(node, ast.Assign | ast.AnnAssign) else ():
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                names.add(inner.id)
    return names


def _fixed(value: Any) -> bool:
    """Python's and NumPy's own, which Numba's version goes with."""
    return isinstance(value, ModuleType) and value.__name__ in ("math", "numpy")
