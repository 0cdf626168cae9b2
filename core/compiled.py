"""Functions compiled by Numba, whose machine code outlives a checkout.

Numba keeps machine code beside its source, so that each new checkout compiles for minutes what another has compiled.
Ours lies in `~/.cache/greenserve/compiled`, in a folder named by the content of the source file and of the files with
compiled functions that it imports from: equal ones share it, those that differ do not disturb each other. So a compiled
function may use only what these files define: what another file defines could change while the machine code stays.
Numba's own setting (NUMBA_CACHE_DIR) goes first, and where our folder cannot be written Numba's own places follow.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, types
from numba.core.caching import CacheImpl, UserProvidedCacheLocator
from numba.core.registry import CPUDispatcher

F = TypeVar("F", bound=Callable[..., Any])
FOLDER = Path(".cache/greenserve/compiled")
OURS = Path(__file__).resolve().parent  # the package
_SETTINGS: Any = config
_WIDE: Callable[[Any], Any] = types.unliteral
# Of files with compiled functions, and of plain ones whose functions other files compile.
_MARKS = ("from core.compiled import compiled\n", "Compiled where it is imported: see core.compiled.")
_IMPORTED = re.compile(r"^from (core\.[\w.]+) import ", re.MULTILINE)


def sources(path: Path) -> list[Path]:
    """Returns the files that the machine code of a file is made from: itself first, then those with compiled functions
    that it imports from, and so on."""
    found = [path]
    for one in found:
        for name in _imported(one.read_text()):
            other = OURS.parent / Path(*name.split(".")).with_suffix(".py")
            if other not in found and other.is_file() and any(mark in other.read_text() for mark in _MARKS):
                found.append(other)
    return found


@cache  # each compiled function asks for its file's
def _imported(text: str) -> list[str]:
    """Returns the modules of ours that a source imports from."""
    return _IMPORTED.findall(text)


class ByContent(UserProvidedCacheLocator):
    """The folder in which the machine code of one of our functions lies."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        self._py_file = py_file
        self._lineno = py_func.__code__.co_firstlineno
        path = Path(py_file)
        content = hashlib.sha256(b"".join(one.read_bytes() for one in sources(path))).hexdigest()[:16]
        self._cache_path = str(Path.home() / FOLDER / f"{path.stem}-{content}")

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> ByContent | None:
        """None: not ours, or kept elsewhere by a setting, or not to be kept in a home folder."""
        if _SETTINGS.CACHE_DIR or not Path(py_file).resolve().is_relative_to(OURS):
            return None
        try:
            own = cls(py_func, py_file)
            own.ensure_cache_path()  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError):  # there is no such file, or no home that can be written
            return None
        return own


if ByContent not in CacheImpl._locator_classes:
    CacheImpl._locator_classes.insert(0, ByContent)


class OfAnyValue(CPUDispatcher):
    """A compiled function with one version for all values of a type.

    Numba compiles one for each constant that another function gives, and for the first value of each variable that is
    given: for the simulator's inner loop that doubled the time.
    """

    def get_call_template(self, args: Sequence[Any], kws: Any) -> Any:
        return super().get_call_template(list(map(_WIDE, args)), {name: _WIDE(kind) for name, kind in kws.items()})


def compiled(function: F) -> F:
    """Returns the function compiled as by Numba's njit, but once for all values of a type; its type is kept."""
    found = OfAnyValue(function, targetoptions={"nopython": True})
    found.enable_caching()
    return cast(F, found)
