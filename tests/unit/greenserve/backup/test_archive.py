"""A backup's file is whole, or refused; and it takes the place of no other."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import msgspec
import pytest

from greenserve.backup import archive, state
from greenserve.backup.archive import BackupError, Entry, Ledger, Manifest

NOTHING = Ledger({"telemetry_energyentry": 0}, {"telemetry_energyentry": 0}, 0)


def manifest(*entries: Entry, **values: object) -> Manifest:
    whole = {"format": archive.FORMAT, "greenserve": "0.2.0", "made_at": "now", "migrations": [], "ledger": NOTHING}
    return Manifest(**(whole | values), entries=list(entries))  # type: ignore[arg-type]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    found = {"files/a/key": tmp_path / "key", "database.dump": tmp_path / "dump"}
    for number, path in enumerate(found.values()):
        path.write_bytes(bytes([number]) * 5_000)
    return found


@pytest.fixture
def written(tmp_path: Path, files: dict[str, Path]) -> Path:
    path = tmp_path / "backup.tar"
    archive.write(path, manifest(*(archive.entry_of(name, copy) for name, copy in files.items())), files)
    return path


def rewritten(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def contents(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def test_what_was_written_is_read_and_is_its_owners_alone(written: Path, files: dict[str, Path]) -> None:
    found = archive.verify(written)
    assert [entry.name for entry in found.entries] == list(files)
    assert {name: content.read() for name, content in archive.members(written)} == {
        name: path.read_bytes() for name, path in files.items()
    }
    assert written.stat().st_mode & 0o777 == 0o600
    assert not list(written.parent.glob(".backup*")), "no draft is left"


def test_a_file_that_is_there_is_not_written_over(written: Path, files: dict[str, Path]) -> None:
    before = written.read_bytes()
    with pytest.raises(BackupError, match="is there already"):
        archive.write(written, manifest(), files)
    assert written.read_bytes() == before


def test_a_changed_part_is_named(written: Path) -> None:
    (head, key, dump) = contents(written)
    rewritten(written, [head, key, (dump[0], b"x" + dump[1][1:])])
    with pytest.raises(BackupError, match=r"database\.dump is not what was backed up"):
        archive.verify(written)


def test_a_missing_part_and_one_too_many_are_named(written: Path) -> None:
    whole = contents(written)
    rewritten(written, whole[:2])
    with pytest.raises(BackupError, match=r"database\.dump is missing"):
        archive.verify(written)
    rewritten(written, [*whole, ("files/more", b"x")])
    with pytest.raises(BackupError, match="files/more is not in its manifest"):
        archive.verify(written)


def test_a_file_that_ends_too_early_is_refused(written: Path) -> None:
    written.write_bytes(written.read_bytes()[:9_000])
    with pytest.raises(BackupError):
        archive.verify(written)


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (("hello", b"x"), "does not begin with manifest"),
        (("manifest.json", b"{}"), "cannot be read"),
        (("manifest.json", msgspec.json.encode(manifest(format=archive.FORMAT + 1))), "restore it with that version"),
        (("manifest.json", msgspec.json.encode(manifest(Entry("files/../../etc", 1, "")))), "outside the data folder"),
        (("manifest.json", msgspec.json.encode(manifest(Entry("/etc/passwd", 1, "")))), "outside the data folder"),
    ],
)
def test_what_is_no_backup_of_this_version_is_refused(tmp_path: Path, member: tuple[str, bytes], why: str) -> None:
    path = tmp_path / "b.tar"
    rewritten(path, [member])
    with pytest.raises(BackupError, match=why):
        archive.verify(path)
    path.write_text("hello")
    with pytest.raises(BackupError, match="is no backup"):
        archive.verify(path)


def test_every_file_is_kept_but_what_servers_and_starts_make(tmp_path: Path) -> None:
    var_dir = tmp_path / "var"
    kept = ["secret-key", "ca/key.pem", "reports/7/report.csv", "spool/requests.a.1.jsonl", "learned/gateway.json"]
    left = ["run/supervisor.lock", "log/web.log", "redis/appendonly.aof", "postgres/PG_VERSION", "redis-url"]
    for name in (*kept, *left):
        (var_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (var_dir / name).write_text(name)
    found = state.copy_files(var_dir, tmp_path / "copies")
    assert sorted(found) == sorted(state.FILES + name for name in kept)
    assert {path.read_text() for path in found.values()} == set(kept)
    assert state.in_the_way(var_dir) == ["ca", "learned", "postgres", "redis", "redis-url", "reports", "spool"]
    assert state.in_the_way(tmp_path / "none") == []


def test_settings_are_lines_that_a_shell_reads() -> None:
    assert state.settings_file({"GREENSERVE_ORGANISATION": "Acme's site", "A": "b"}) == (
        b"A=b\nGREENSERVE_ORGANISATION='Acme'\"'\"'s site'\n"
    )
