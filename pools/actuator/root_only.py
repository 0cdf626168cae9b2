"""Can anyone but root change what the actuator runs? Then they would be root."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

INSTALLED = Path("/opt/greenserve")
PYTHON = INSTALLED / "bin" / "python"
REMEDY = (
    f"install GreenServe as root: `python3 -m venv {INSTALLED} && {INSTALLED}/bin/pip install WHEEL` (docs/nodes.md); "
    f"then `{INSTALLED}/bin/greenserve units actuator --user USER` prints the service"
)
_MOST_LINKS = 40
Look = Callable[[Path], os.stat_result]


def safe_python(*choices: Path) -> tuple[Path | None, str]:
    """Returns the first Python that root may run; else None, and why not the first of these."""
    faults = [fault_of_python(python) for python in choices]
    found = next((python for python, fault in zip(choices, faults, strict=True) if not fault), None)
    return found, "" if found else faults[0]


def fault_of_python(python: Path, look: Look = os.lstat) -> str:
    """Returns why root must not run `python -I -m pools.actuator`; empty: only root can change what that runs.

    Looks at the interpreter, at the environment that it stands in with all its files, and at what `.pth` files add.
    """
    try:
        return next(_faults(python.absolute(), look), "")
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def _faults(python: Path, look: Look) -> Iterator[str]:
    yield from _of_path(python, look)
    environment = python.parent.parent
    if not (environment / "pyvenv.cfg").exists():
        yield f"{python} is in no environment of its own"
    packages = sorted(environment.glob("lib/python3*/site-packages"))
    if not any((path / "pools" / "actuator" / "__main__.py").exists() for path in packages):
        yield f"GreenServe is not installed in {environment}: its code comes from elsewhere, or not at all"
    base = python.resolve()
    yield from _of_path(base, look)
    yield from _of_path(base.parent.parent / "lib" / base.name, look, may_lack=True)  # the standard library
    yield from _of_tree(environment, look)
    for added in _added(packages):
        yield from _of_path(added, look)
        yield from _of_tree(added, look)


def _added(packages: list[Path]) -> Iterator[Path]:
    """Yields what `.pth` files add to the places that Python imports from."""
    for folder in packages:
        for file in folder.glob("*.pth"):
            lines = (line.strip() for line in file.read_text().splitlines())
            yield from (path for line in lines if line and (path := folder / line).exists())


def _of_path(path: Path, look: Look, may_lack: bool = False, links: int = 0) -> Iterator[str]:
    """Yields faults of a path and of all that it goes through, with links followed."""
    at = Path(path.anchor)
    for part in ("", *path.parts[1:]):
        at = at / part
        try:
            found = look(at)
        except FileNotFoundError:
            if may_lack:
                return
            raise
        yield from _of_one(at, found, parent=at != path)
        if stat.S_ISLNK(found.st_mode):
            if links == _MOST_LINKS:
                yield f"{path} goes in circles"
                return
            target = Path(os.path.normpath(at.parent / os.readlink(at)))
            yield from _of_path(target / path.relative_to(at), look, may_lack, links + 1)
            return


def _of_tree(folder: Path, look: Look) -> Iterator[str]:
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield from _of_one(Path(where, name), look(Path(where, name)))


def _of_one(path: Path, found: os.stat_result, parent: bool = False) -> Iterator[str]:
    """In a folder with the sticky bit others can make files, and neither change nor replace root's."""
    if found.st_uid != 0:
        yield f"{path} belongs to uid {found.st_uid}"
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(found.st_mode)
    if writable and not (parent and found.st_mode & stat.S_ISVTX):
        yield f"{path} can be written by others than root (mode {stat.S_IMODE(found.st_mode):04o})"
