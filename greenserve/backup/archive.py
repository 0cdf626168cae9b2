"""The file of a backup: a tar of members, and first of all a manifest with the size and SHA-256 of each."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

FORMAT = 1
MANIFEST = "manifest.json"
BLOCK_BYTES = 1 << 20


class BackupError(Exception):
    """Says in one line why a backup cannot be written or used, and what to do."""


class Entry(msgspec.Struct, frozen=True):
    """A member. `mode`: of the file that it was."""

    name: str
    bytes: int
    sha256: str
    mode: int = 0o600


class Ledger(msgspec.Struct, frozen=True):
    """Entries of the ledger and their sum, by table, and the version of the settled ledger."""

    entries: dict[str, int]
    energy_uj: dict[str, int]
    version: int


class Manifest(msgspec.Struct, frozen=True):
    """`migrations`: those that the database has, as `app.name`. `left_out`: what lies outside and is not in here."""

    format: int
    greenserve: str
    made_at: str
    migrations: list[str]
    ledger: Ledger
    entries: list[Entry]
    left_out: list[str] = []


def entry_of(name: str, path: Path) -> Entry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    found = path.stat()
    return Entry(name, found.st_size, digest, found.st_mode & 0o777)


def write(path: Path, manifest: Manifest, files: Mapping[str, Path]) -> None:
    """Writes the archive whole or not at all, for its owner alone. `files`: by member. Raises BackupError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                _add(tar, MANIFEST, io.BytesIO(data := msgspec.json.encode(manifest)), len(data))
                for entry in manifest.entries:
                    with files[entry.name].open("rb") as member:
                        _add(tar, entry.name, member, entry.bytes)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # which refuses to take the place of another
    except FileExistsError:
        raise BackupError(f"{path} is there already: give another name") from None
    except OSError as error:
        raise BackupError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    tar.addfile(member, content)


def verify(path: Path) -> Manifest:
    """Reads the whole archive, and returns its manifest once all members are as it says. Raises BackupError."""
    with _opened(path) as tar:
        manifest = _manifest(path, tar)
        left = {entry.name: entry for entry in manifest.entries}
        for member in _rest(path, tar):
            entry = left.pop(member.name, None)
            if entry is None:
                raise BackupError(f"{path}: {member.name} is not in its manifest: do not use this file")
            if _digest(tar, member) != (entry.bytes, entry.sha256):
                raise BackupError(f"{path}: {member.name} is not what was backed up: use another backup")
    if left:
        raise BackupError(f"{path} ends too early: {min(left)} is missing: use another backup")
    return manifest


def members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yields each member but the manifest with its content. Call `verify` before."""
    with _opened(path) as tar:
        _manifest(path, tar)
        for member in _rest(path, tar):
            content = tar.extractfile(member)
            assert content is not None
            yield member.name, content


def _opened(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path, mode="r:")
    except (OSError, tarfile.TarError) as error:
        raise BackupError(f"{path} is no backup, or cannot be read: {error}") from None


def _manifest(path: Path, tar: tarfile.TarFile) -> Manifest:
    try:
        first = tar.next()
        content = tar.extractfile(first) if first is not None and first.name == MANIFEST else None
        if content is None:
            raise BackupError(f"{path} is no backup of GreenServe: it does not begin with {MANIFEST}")
        manifest = msgspec.json.decode(content.read(), type=Manifest)
    except (msgspec.DecodeError, tarfile.TarError, OSError) as error:
        raise BackupError(f"{path}: its manifest cannot be read: {error}") from None
    if manifest.format > FORMAT:
        raise BackupError(f"{path} was written by GreenServe {manifest.greenserve}: restore it with that version")
    for entry in manifest.entries:
        if PurePosixPath(entry.name).is_absolute() or ".." in PurePosixPath(entry.name).parts:
            raise BackupError(f"{path}: {entry.name} would be written outside the data folder: do not use this file")
    return manifest


def _rest(path: Path, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yields the members after the manifest. Raises BackupError."""
    try:
        while (member := tar.next()) is not None:
            yield member
    except (tarfile.TarError, OSError) as error:
        raise BackupError(f"{path} ends too early or is damaged ({error}): use another backup") from None


def _digest(tar: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[int, str]:
    content = tar.extractfile(member) if member.isfile() else None
    if content is None:
        return -1, ""
    digest, size = hashlib.sha256(), 0
    try:
        while block := content.read(BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    except (tarfile.TarError, OSError):
        return -1, ""
    return size, digest.hexdigest()
