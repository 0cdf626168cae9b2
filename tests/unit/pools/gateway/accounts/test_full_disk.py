"""A disk that takes no rows: they are held in memory and shipped from there until it is right again."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pools import wire
from pools.gateway.accounts import request_journal as module
from pools.gateway.accounts.held_rows import HeldRows
from pools.gateway.accounts.request_journal import Journal
from pools.gateway.accounts.request_shipper import Shipper, batches

from .test_request_journal import FakeStream, row

Break = Callable[..., None]


class Disk:
    """`os` to the journal: each call that is named in `broken` fails with its error."""

    def __init__(self) -> None:
        self.broken: dict[str, int] = {}
        self.room: int | None = None  # bytes that a write still takes

    def __getattr__(self, name: str) -> object:
        if name in self.broken:
            return self._fail(self.broken[name])
        return self._write if name == "write" else getattr(os, name)

    def fill(self) -> None:
        self.broken = {"write": errno.ENOSPC, "open": errno.ENOSPC}

    def _write(self, fd: int, data: bytes) -> int:
        if self.room is None:
            return os.write(fd, data)
        data, self.room = data[: self.room], self.room - min(self.room, len(data))
        if not data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, data)

    @staticmethod
    def _fail(number: int) -> Callable[..., object]:
        def fail(*_: object, **__: object) -> object:
            raise OSError(number, os.strerror(number))

        return fail


def only_file(folder: Path) -> Path:
    (name,) = os.listdir(folder)
    return folder / name


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()
    monkeypatch.setattr(module, "os", found)
    monkeypatch.setattr(module, "MEND_EVERY_S", 0.0)
    return found


@pytest.fixture
def stream() -> FakeStream:
    return FakeStream()


@pytest.fixture
def journal(tmp_path: Path, disk: Disk) -> Journal:
    return Journal(tmp_path, "gw", "boot")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
async def test_every_row_is_shipped_from_memory_when_the_disk_takes_none(
    journal: Journal, disk: Disk, stream: FakeStream, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shipper = Shipper(journal, stream)
    journal.append(row(0))
    disk.broken = {"write": number, "open": number}
    for n in range(1, 7, 2):
        journal.append(row(n), row(n + 1))
        await shipper.ship()
    assert journal.disk_state().fault == os.strerror(number)
    disk.broken = {}
    journal.append(row(7))
    await shipper.ship()
    journal.append(row(8))
    await shipper.ship()
    assert sorted(stream.ids()) == [f"id-{n}" for n in range(9)]
    assert len(set(stream.numbers())) == len(stream.taken)
    assert shipper.shipped_rows == 9
    assert journal.disk_state() == wire.DiskState("", 0, 0)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"], "each once"


async def test_held_rows_go_to_the_disk_first_when_it_is_right_again_and_the_stream_is_away(
    journal: Journal, disk: Disk, stream: FakeStream, tmp_path: Path
) -> None:
    shipper = Shipper(journal, stream)
    stream.away = True
    disk.fill()
    journal.append(*map(row, range(1200)))
    with pytest.raises(ConnectionError):
        await shipper.ship()
    assert len(journal.held) == 1200
    disk.broken = {}
    journal.mend()
    journal.append(row(1200))
    assert not journal.held
    rows = [one.request_id for batch in batches(only_file(tmp_path)) for one in batch.rows]
    assert rows == [f"id-{n}" for n in range(1201)]


async def test_whole_rows_stay_on_disk_and_the_others_are_held_when_a_write_is_torn(
    journal: Journal, disk: Disk, stream: FakeStream, tmp_path: Path
) -> None:
    disk.room = len(module._ENCODER.encode_lines([row(1), row(2)])) + 20
    journal.append(row(1), row(2), row(3), row(4))
    path = only_file(tmp_path)
    (batch,) = batches(path)
    assert [one.request_id for one in batch.rows] == ["id-1", "id-2"]
    assert path.read_bytes().endswith(b"\n"), "the torn row is cut off"
    assert journal.is_sound(path)
    assert len(journal.held) == 2
    await Shipper(journal, stream).ship()
    assert sorted(stream.ids()) == ["id-1", "id-2", "id-3", "id-4"]
    assert journal.fault, "its probe found no room"


async def test_rows_are_lost_and_counted_only_when_memory_is_full_too(
    tmp_path: Path, disk: Disk, stream: FakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    size = len(module._ENCODER.encode_lines([row(0)]))
    for number, held in enumerate((HeldRows(most_rows=3), HeldRows(most_bytes=4 * size - 1))):
        journal = Journal(tmp_path / str(number), "gw", "boot", held)
        disk.fill()
        began_s = time.time()
        journal.append(*map(row, range(5)))
        state = journal.disk_state()
        assert (state.held, state.lost) == (3, 2)
        assert state.lost_at_s is not None
        assert began_s <= state.lost_at_s <= time.time()
        await Shipper(journal, stream).ship()
        journal.append(row(5))
        assert journal.lost_rows == 2, "there is room again"
        assert stream.ids() == ["id-0", "id-1", "id-2"]
        assert "rows are lost since the start; the disk: No space left on device" in caplog.text
        stream.taken.clear()
        disk.broken = {}


def test_held_rows_are_counted_lost_when_the_process_ends_with_them(journal: Journal, disk: Disk) -> None:
    disk.fill()
    journal.append(row(1), row(2))
    journal.close()
    assert journal.lost_rows == 2


async def test_rows_in_memory_are_tried_until_the_grace_is_over_when_the_process_ends(
    journal: Journal, disk: Disk, stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    add = stream.add

    async def back_at_the_third(batch: wire.RequestBatch) -> None:
        nonlocal tries
        tries += 1
        stream.away = tries < 3
        await add(batch)

    monkeypatch.setattr(stream, "add", back_at_the_third)
    monkeypatch.setattr("pools.gateway.accounts.request_shipper.FINISH_EVERY_S", 0.0)
    disk.fill()
    journal.append(row(1))
    shipper = Shipper(journal, stream)
    await shipper.finish(time.monotonic() - 1.0)
    assert tries == 1, "no time is left"
    await shipper.finish(time.monotonic() + 60.0)
    assert stream.ids() == ["id-1"]
    journal.close()
    assert journal.lost_rows == 0


async def test_no_row_is_lost_when_the_folder_is_deleted_under_the_gateway(
    journal: Journal, stream: FakeStream, tmp_path: Path
) -> None:
    shipper = Shipper(journal, stream)
    journal.append(row(1), row(2))
    shutil.rmtree(tmp_path)
    await shipper.ship()
    journal.append(row(3))
    await shipper.ship()
    assert stream.ids() == ["id-1", "id-2", "id-3"]
    assert not journal.fault
    journal.close()
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("call", ["open", "rename"])
async def test_journal_goes_on_in_memory_when_the_next_file_cannot_be_made(
    journal: Journal, disk: Disk, stream: FakeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    journal.append(row(1))
    with monkeypatch.context() as broken:
        if call == "open":
            disk.broken = {"open": errno.ENOSPC}
        else:
            broken.setattr(Path, "rename", Disk._fail(errno.ENOSPC))
        journal.rotate()
        journal.append(row(2))
        await Shipper(journal, stream).ship()
    assert sorted(stream.ids()) == ["id-1", "id-2"]
    assert not os.listdir(tmp_path), "no draft is left"


def test_gateway_starts_when_the_disk_is_full_but_not_when_the_folder_is_wrong(tmp_path: Path, disk: Disk) -> None:
    disk.fill()
    journal = Journal(tmp_path, "gw", "boot")
    journal.append(row(1))
    assert len(journal.held) == 1
    disk.broken = {"open": errno.EACCES}
    with pytest.raises(PermissionError):
        Journal(tmp_path, "gw", "boot")


async def test_file_is_shipped_once_when_the_disk_does_not_let_it_be_deleted(
    journal: Journal, stream: FakeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipper = Shipper(journal, stream)
    journal.append(row(1))
    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", Disk._fail(errno.EROFS))
        for _ in range(3):
            await shipper.ship()
    assert stream.ids() == ["id-1"]
    await shipper.ship()
    journal.close()
    assert not os.listdir(tmp_path)


async def test_other_files_are_shipped_when_one_cannot_be_read(
    journal: Journal, stream: FakeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipper = Shipper(journal, stream)
    stream.away = True
    monkeypatch.setattr(module, "ROTATE_BYTES", 1)
    for n in range(3):
        journal.append(row(n))
        with pytest.raises(ConnectionError):
            await shipper.ship()
    stream.away = False
    read = Path.read_bytes
    bad = tmp_path / min(os.listdir(tmp_path))

    def fail_once(path: Path) -> bytes:
        if path == bad:
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", fail_once)
        await shipper.ship()
    assert stream.ids() == ["id-1", "id-2"]
    await shipper.ship()
    assert stream.ids() == ["id-1", "id-2", "id-0"]
