"""All versions of trained encoders under a data folder, and the one that is in use.

`predictors/NAME/NNNN` is a version, and never changes. `predictors/in_use.json` names the one that gateways ask; it is
replaced whole, so that whoever reads it sees the old one or the new one.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .version_files import Manifest, UnusableVersion, read_files, read_manifest

FOLDER, IN_USE = "predictors", "in_use.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_NUMBER = re.compile(r"\d{4,9}")
_DRAFT = ".draft-"


class InUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The version that is asked. `services` None: for all; `earlier`: what was in use of this name before, newest last.

    The classes of a version are those of the answers that it was trained on, so it may be for some services alone.
    """

    name: str
    version: int
    services: tuple[str, ...] | None = None
    earlier: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """A version in the list. `manifest` None: it cannot be used, and `fault` says why."""

    name: str
    number: int
    manifest: Manifest | None
    fault: str
    in_use: bool


class Versions:
    """The versions below a data folder. Every method may raise UnusableVersion, and OSError where the disk fails."""

    def __init__(self, data_folder: Path) -> None:
        self.folder = data_folder / FOLDER
        self.pointer = self.folder / IN_USE

    def path(self, name: str, number: int) -> Path:
        """Returns the folder of a version, whether it is there or not."""
        return self.folder / name / f"{number:04d}"

    def all(self) -> list[Version]:
        """Returns all versions by name and number; of each its manifest is read, not its model."""
        used = self.in_use()
        found = []
        for name in self._names():
            for number in self._numbers(name):
                manifest, fault = None, ""
                try:
                    manifest = read_manifest(self.path(name, number))
                except UnusableVersion as error:
                    fault = str(error)
                in_use = used is not None and (used.name, used.version) == (name, number)
                found.append(Version(name, number, manifest, fault, in_use))
        return found

    @contextmanager
    def draft(self, name: str) -> Iterator[Path]:
        """Gives an empty folder for the files of a new version; without `publish` it is gone afterwards."""
        folder = self.folder / check_name(name)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # a tokenizer has pieces of prompts' words in it
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=folder))
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def publish(self, name: str, draft: Path) -> int:
        """Makes a draft the next version of a name, all at once, and returns its number."""
        while True:
            number = max(self._numbers(name), default=0) + 1
            try:
                draft.rename(self.path(name, number))
            except OSError:
                if not self.path(name, number).exists():
                    raise
                continue  # another training was faster
            return number

    def in_use(self) -> InUse | None:
        """Returns what is in use; None: nothing."""
        try:
            raw = self.pointer.read_bytes()
        except FileNotFoundError:
            return None
        try:
            used = msgspec.json.decode(raw, type=InUse)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnusableVersion(f"{self.pointer} cannot be read: {error}; greenserve predictor off") from None
        check_name(used.name)
        return used

    def use(self, name: str, number: int | None = None, services: tuple[str, ...] | None = None) -> InUse:
        """Puts a version into use, the newest if none is named, once all of its files were checked."""
        numbers = self._numbers(check_name(name))
        if not numbers:
            known = ", ".join(self._names()) or "none"
            raise UnusableVersion(f"there is no predictor {name}; there are: {known}")
        number = numbers[-1] if number is None else number
        if number not in numbers:
            raise UnusableVersion(f"{name} has no version {number}; it has {', '.join(map(str, numbers))}")
        before = self.in_use()
        earlier = before.earlier if before is not None and before.name == name else ()
        if before is not None and before.name == name and before.version != number:
            earlier = (*earlier, before.version)
        return self._point_at(InUse(name=name, version=number, services=services, earlier=earlier))

    def rollback(self, name: str) -> InUse:
        """Puts the version of a name into use again that was in use before the present one."""
        used = self.in_use()
        if used is None or used.name != check_name(name):
            raise UnusableVersion(
                f"{name} is not in use, so nothing can be rolled back: greenserve predictor use {name}"
            )
        if not used.earlier:
            raise UnusableVersion(f"no other version of {name} was in use before version {used.version}")
        *earlier, last = used.earlier
        return self._point_at(InUse(name=name, version=last, services=used.services, earlier=tuple(earlier)))

    def off(self) -> bool:
        """Takes what is in use out of use, and says whether something was."""
        was = self.pointer.exists()
        self.pointer.unlink(missing_ok=True)
        return was

    def _point_at(self, used: InUse) -> InUse:
        folder = self.path(used.name, used.version)
        read_files(folder, read_manifest(folder))
        draft = self.pointer.with_name(f".{IN_USE}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(used))
        draft.replace(self.pointer)
        return used

    def _names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name))

    def _numbers(self, name: str) -> list[int]:
        folder = self.folder / name
        if not folder.is_dir():
            return []
        return sorted(int(path.name) for path in folder.iterdir() if _NUMBER.fullmatch(path.name))


def check_name(name: str) -> str:
    """Returns the name of a predictor. Raises UnusableVersion where it can be none."""
    if not _NAME.fullmatch(name):
        raise UnusableVersion(f"a predictor's name is a to z, 0 to 9, - and _, at most 64, unlike {name!r}")
    return name
