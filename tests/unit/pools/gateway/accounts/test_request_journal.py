"""Rows on disk and their way to the stream: none lost, and the same numbers for the same rows."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pools import wire
from pools.gateway.accounts import request_journal as module
from pools.gateway.accounts import request_shipper
from pools.gateway.accounts.request_journal import Journal
from pools.gateway.accounts.request_shipper import Shipper, StreamFull, batches


class FakeStream:
    """Takes batches; fails while `away`, and after `fail_after` more batches; is full when `room` is used up."""

    def __init__(self) -> None:
        self.taken: list[wire.RequestBatch] = []
        self.away = False
        self.fail_after: int | None = None
        self.room = 1_000

    async def add(self, batch: wire.RequestBatch) -> None:
        if self.room == 0:
            raise StreamFull
        self.room -= 1
        if self.away or self.fail_after == 0:
            raise ConnectionError("Redis is away")
        if self.fail_after is not None:
            self.fail_after -= 1
        self.taken.append(wire.decode(wire.encode(batch), wire.RequestBatch))  # as it comes out at the other end

    def ids(self) -> list[str]:
        return [row.request_id for batch in self.taken for row in batch.rows]

    def numbers(self) -> list[tuple[str, str, int]]:
        return [(batch.gateway, batch.boot, batch.seq) for batch in self.taken]


def row(n: int) -> wire.RequestRow:
    return wire.RequestRow(f"id-{n}", 1e9 + n, "svc", 1, 1, "chat", True, "ok", 200)


@pytest.fixture
def stream() -> FakeStream:
    return FakeStream()


async def test_rows_are_shipped_and_deleted_when_the_stream_confirms(tmp_path: Path, stream: FakeStream) -> None:
    journal = Journal(tmp_path, "gw.1", "boot")
    shipper = Shipper(journal, stream)
    for n in range(3):
        journal.append(row(n))
        await shipper.ship()
    assert stream.ids() == ["id-0", "id-1", "id-2"]
    assert stream.taken[0].rows[0] == row(0)
    assert len(set(stream.numbers())) == 3
    assert {numbers[:2] for numbers in stream.numbers()} == {("gw.1", "boot")}
    assert shipper.shipped_rows == 3
    journal.close()
    assert not os.listdir(tmp_path)


async def test_nothing_is_lost_or_piled_up_when_the_stream_is_away(tmp_path: Path, stream: FakeStream) -> None:
    journal = Journal(tmp_path, "gw", "boot")
    shipper = Shipper(journal, stream)
    stream.away = True
    for n in range(5):
        journal.append(row(n))
        with pytest.raises(ConnectionError):
            await shipper.ship()
    assert len(os.listdir(tmp_path)) == 2, "a closed file that waits, and the one in use"
    stream.away = False
    await shipper.ship()
    await shipper.ship()
    assert stream.ids() == [f"id-{n}" for n in range(5)]


@pytest.fixture
def five_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """A journal whose batches have two rows."""
    monkeypatch.setattr(request_shipper, "BATCH_ROWS", 2)
    journal = Journal(tmp_path, "gw", "boot")
    journal.append(*map(row, range(5)))
    return journal


async def test_numbers_repeat_when_a_file_is_shipped_again(five_rows: Journal, stream: FakeStream) -> None:
    shipper = Shipper(five_rows, stream)
    stream.fail_after = 2
    with pytest.raises(ConnectionError):
        await shipper.ship()
    stream.fail_after = None
    await shipper.ship()
    assert stream.numbers()[:2] == stream.numbers()[2:4]
    assert len(set(stream.numbers())) == 3
    assert sorted(set(stream.ids())) == [f"id-{n}" for n in range(5)]


async def test_what_is_left_of_a_file_is_shipped_once_when_a_full_stream_has_room_again(
    five_rows: Journal, tmp_path: Path, stream: FakeStream
) -> None:
    shipper = Shipper(five_rows, stream)
    for _ in range(2):
        stream.room = 1
        with pytest.raises(StreamFull):
            await shipper.ship()
    five_rows.append(row(5))
    stream.room = 10
    await shipper.ship()
    await shipper.ship()
    assert stream.ids() == [f"id-{n}" for n in range(6)]
    assert shipper.shipped_rows == 6
    five_rows.close()
    assert not os.listdir(tmp_path)


async def test_rows_of_a_dead_gateway_are_shipped_under_its_own_boot(tmp_path: Path, stream: FakeStream) -> None:
    dead = Journal(tmp_path, "gw", "boot-1")
    dead.append(row(1))
    living = Journal(tmp_path, "gw", "boot-2")
    shipper = Shipper(living, stream)
    await shipper.ship()
    assert not stream.taken, "the first still holds its file"
    os.close(dead._fd)  # what its death does
    await shipper.ship()
    assert stream.ids() == ["id-1"]
    assert stream.numbers()[0][1] == "boot-1"


def test_torn_line_is_skipped_when_a_file_is_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "gw", "boot")
    journal.append(row(1))
    (path,) = tmp_path.iterdir()
    with path.open("ab") as file:
        file.write(b'{"request_id":"to\n')
    journal.append(row(2))
    (batch,) = batches(path)
    assert [r.request_id for r in batch.rows] == ["id-1", "id-2"]


async def test_file_is_closed_when_full_though_the_stream_is_away(
    tmp_path: Path, stream: FakeStream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "ROTATE_BYTES", 1000)
    monkeypatch.setattr(request_shipper, "WARN_BACKLOG_BYTES", 2000)
    journal = Journal(tmp_path, "gw", "boot")
    shipper = Shipper(journal, stream)
    stream.away = True
    for n in range(20):
        journal.append(row(n))
        with pytest.raises(ConnectionError):
            await shipper.ship()
    assert len(os.listdir(tmp_path)) > 4
    assert shipper.backlog_bytes > 2000
    assert [r.levelname for r in caplog.records] == ["WARNING"], "said once a minute"
    stream.away = False
    await shipper.ship()
    await shipper.ship()
    assert sorted(stream.ids()) == sorted(f"id-{n}" for n in range(20))


async def test_what_a_killed_gateway_left_is_shipped_once_when_several_share_a_folder(tmp_path: Path) -> None:
    killed = Journal(tmp_path, "gw.1", "boot-1")
    killed.append(*(row(n) for n in range(1200)))
    others = [Journal(tmp_path, f"gw.{n}", "boot") for n in (2, 3)]
    streams = [FakeStream(), FakeStream()]
    shippers = [Shipper(*pair) for pair in zip(others, streams, strict=True)]
    await asyncio.gather(*(shipper.ship() for shipper in shippers))
    assert not streams[0].taken, "it still writes"
    assert not streams[1].taken
    os.close(killed._fd)  # as the kernel does for the dead
    await asyncio.gather(*(shipper.ship() for shipper in shippers))
    ids = streams[0].ids() + streams[1].ids()
    assert sorted(ids) == sorted(f"id-{n}" for n in range(1200)), "each once"
    for journal in others:
        journal.close()
    assert not os.listdir(tmp_path)


async def test_file_that_another_gateway_ships_is_let_be(tmp_path: Path, stream: FakeStream) -> None:
    (left := Journal(tmp_path, "gw.1", "boot-1")).append(row(0))
    left.rotate()
    other = Journal(tmp_path, "gw.2", "boot")
    shipper = Shipper(other, stream)
    (waiting,) = other.closed_files()
    with module.claim(waiting) as mine:
        assert mine
        assert not other.closed_files()
        await shipper.ship()
    assert not stream.taken
    await shipper.ship()
    assert stream.ids() == ["id-0"]
    with module.claim(waiting) as mine:
        assert not mine, "it is gone"
    other.close()
    left.close()


def test_new_file_is_nobodys_prey_before_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its lock another gateway may look around."""
    seen: list[list[Path]] = []
    other = Journal(tmp_path, "gw.2", "boot")
    lock = module.fcntl.flock

    def look_then_lock(file: object, how: int) -> None:
        if isinstance(file, int):
            seen.append(list(tmp_path.glob("requests.gw.1.*.jsonl")))
        lock(file, how)  # type: ignore[arg-type]

    monkeypatch.setattr(module.fcntl, "flock", look_then_lock)
    journal = Journal(tmp_path, "gw.1", "boot")
    assert seen == [[]]
    assert not other.closed_files()
    journal.append(row(0))
    assert len(list(tmp_path.glob("requests.gw.1.*.jsonl"))) == 1
    journal.close()
    other.close()
