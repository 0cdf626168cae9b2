"""What root runs, root alone can change: every file, every folder above it, and every link to it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pools.actuator.root_only import fault_of_python, safe_python


class Machine:
    """A file system as it would look with a Python in /usr and an environment in /opt; all of it is root's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = self.make("opt/greenserve/bin/python", link_to="python3")
        self.make("opt/greenserve/bin/python3", link_to=str(root / "usr/bin/python3"))
        self.make("usr/bin/python3", link_to="python3.11")
        self.make("usr/bin/python3.11")
        self.make("usr/lib/python3.11/os.py")
        self.make("opt/greenserve/pyvenv.cfg")
        self.packages = "opt/greenserve/lib/python3.11/site-packages"
        self.make(f"{self.packages}/pools/actuator/__main__.py")
        self.owners: dict[Path, int] = {}
        self.modes: dict[Path, int] = {}

    def make(self, name: str, link_to: str = "", text: str = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if link_to:
            path.symlink_to(link_to)
        else:
            path.write_text(text)
        return path

    def look(self, path: Path) -> os.stat_result:
        found = list(os.lstat(path))
        link = stat.S_ISLNK(found[0])
        found[0] = stat.S_IFMT(found[0]) | self.modes.get(path, 0o777 if link else 0o755)
        found[4] = self.owners.get(path, 0)
        return os.stat_result(found)

    def fault(self) -> str:
        return fault_of_python(self.python, self.look)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_environment_that_is_roots_all_through_is_taken(machine: Machine) -> None:
    assert machine.fault() == ""
    machine.modes[machine.root] = 0o1777  # others may make files there, and not replace root's
    assert machine.fault() == ""


@pytest.mark.parametrize(
    "name",
    [
        "",
        "opt",
        "opt/greenserve",
        "opt/greenserve/bin/python",
        "opt/greenserve/bin/python3",
        "usr",
        "usr/bin",
        "usr/bin/python3",
        "usr/bin/python3.11",
        "usr/lib/python3.11",
        "opt/greenserve/lib/python3.11/site-packages/pools/actuator/__main__.py",
        "opt/greenserve/lib/python3.11/site-packages",
    ],
)
def test_refused_and_named_when_anything_on_the_way_is_anothers_or_can_be_written(machine: Machine, name: str) -> None:
    path = machine.root / name
    machine.owners[path] = 1000
    assert machine.fault() == f"{path} belongs to uid 1000"
    machine.owners.clear()
    if not path.is_symlink():
        for mode in (0o775, 0o757):
            machine.modes[path] = mode
            assert machine.fault() == f"{path} can be written by others than root (mode {mode:04o})"


def test_sticky_bit_saves_no_file_of_the_environment(machine: Machine) -> None:
    path = machine.root / machine.packages
    machine.modes[path] = 0o1777  # Python would import what others put in there
    assert machine.fault() == f"{path} can be written by others than root (mode 1777)"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: (m.root / "opt/greenserve/pyvenv.cfg").unlink(), "is in no environment of its own"),
        (lambda m: (m.root / m.packages / "pools/actuator/__main__.py").unlink(), "GreenServe is not installed in"),
        (lambda m: (m.root / "usr/bin/python3.11").unlink(), "No such file"),
    ],
)
def test_refused_when_the_code_comes_from_elsewhere(
    machine: Machine, change: Callable[[Machine], None], words: str
) -> None:
    change(machine)
    assert words in machine.fault()


def test_what_pth_files_add_counts_as_well(machine: Machine) -> None:
    added = machine.make("srv/more/module.py")
    machine.make(f"{machine.packages}/more.pth", text=f"import sys\n{added.parent}\n/nowhere\n")
    assert machine.fault() == ""
    machine.owners[added] = 1000
    assert machine.fault() == f"{added} belongs to uid 1000"
    machine.owners = {added.parent.parent: 1000}
    assert machine.fault() == f"{added.parent.parent} belongs to uid 1000"


def test_links_in_a_circle_end(machine: Machine) -> None:
    one = machine.make("opt/a", link_to="b")
    machine.make("opt/b", link_to="a")
    assert "goes in circles" in fault_of_python(one, machine.look)


def test_first_python_that_is_safe_is_chosen_and_else_the_first_fault_is_returned(tmp_path: Path) -> None:
    found, fault = safe_python(tmp_path / "mine/python", tmp_path / "theirs/python")
    assert found is None
    assert fault.endswith("mine: No such file or directory")
