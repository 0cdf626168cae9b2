"""Batches on disk: in order, within a bound, and over restarts; and the outbox that puts them there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pools.agent.batch_outbox import LIMIT, SPILL, Outbox
from pools.agent.batch_spool import BatchSpool
from pools.wire import AgentBatch, ClockDecision, DiskState
from tests.fakes.release.messages import every


def batch(seq: int) -> AgentBatch:
    return AgentBatch("n1", "boot", seq, float(seq))


def numbers(spool: BatchSpool, most: int = 100) -> list[int]:
    return [each.seq for each in spool.pending(most)]


def drained(spool: BatchSpool | Outbox, most: int = 2) -> list[tuple[str, int]]:
    found = []
    while batches := spool.pending(most):
        found += [(each.boot, each.seq) for each in batches]
        spool.confirm(len(batches))
    return found


def test_batches_come_out_in_order_and_files_go_when_they_have_arrived(tmp_path: Path) -> None:
    spool = BatchSpool(tmp_path)
    spool.put([batch(1), batch(2), batch(3)])
    spool.put([batch(4)])
    assert spool.waiting == 4
    assert numbers(spool, 2) == [1, 2]
    spool.confirm(1)
    assert (numbers(spool, 2), spool.waiting) == ([2, 3], 3)
    spool.confirm(0)
    spool.confirm(2)
    assert (numbers(spool), spool.waiting) == ([4], 1)
    spool.confirm(1)
    assert (numbers(spool), spool.waiting, spool.dropped) == ([], 0, 0)
    assert not list(tmp_path.iterdir())


def test_batch_is_the_same_when_it_comes_from_disk(tmp_path: Path) -> None:
    (sent,) = (message for message in every().values() if isinstance(message, AgentBatch))
    spool = BatchSpool(tmp_path)
    spool.put([sent])
    assert spool.pending(1) == [sent]


def test_files_of_an_agent_that_was_killed_are_sent_by_the_next(tmp_path: Path) -> None:
    killed = BatchSpool(tmp_path)
    killed.put([batch(1), batch(2)])
    killed.put([batch(3)])
    killed.pending(9)
    killed.confirm(1)
    (tmp_path / "draft").write_bytes(b"half a f")
    spool = BatchSpool(tmp_path)
    spool.put([batch(4)])
    assert spool.waiting == 4
    assert drained(spool) == [("boot", seq) for seq in range(1, 5)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", [b"", b"\x90", b"no MessagePack"])
def test_file_is_dropped_and_named_when_it_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, left: bytes
) -> None:
    spool = BatchSpool(tmp_path)
    spool.put([batch(1), batch(2)])
    spool.put([batch(3)])
    first = min(tmp_path.iterdir())
    first.write_bytes(left)
    assert drained(spool) == [("boot", 3)]
    assert spool.dropped == 2
    assert (first.name in caplog.text) == (left != b"\x90")


def test_oldest_go_when_there_are_more_than_the_bound(tmp_path: Path) -> None:
    spool = BatchSpool(tmp_path, most_bytes=200)
    spool.put([batch(1), batch(2)])
    spool.pending(9)
    spool.confirm(1)
    for seq in range(3, 30):
        spool.put([batch(seq)])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 200
    kept = [seq for _, seq in drained(spool)]
    assert kept == list(range(kept[0], 30))
    assert spool.dropped == kept[0] - 2, "the first had arrived"


def add(outbox: Outbox, count: int) -> None:
    decision = ClockDecision(1.0, "a", "hold", "keeps", 900.0, 900.0, 1, {})
    for _ in range(count):
        outbox.add(1.0, [], [], [decision])


def test_nothing_is_lost_and_little_kept_in_memory_when_batches_cannot_be_sent_for_long(tmp_path: Path) -> None:
    outbox = Outbox("n1", "boot-1", spool=BatchSpool(tmp_path))
    add(outbox, 3 * LIMIT + 7)
    spooled = BatchSpool(tmp_path).waiting
    assert outbox.waiting == 3 * LIMIT + 7
    assert outbox.waiting - spooled < SPILL
    assert drained(outbox, 50) == [("boot-1", seq) for seq in range(1, 3 * LIMIT + 8)]
    assert (outbox.waiting, outbox.dropped) == (0, 0)
    assert not list(tmp_path.iterdir())


def test_batches_of_an_agent_that_ended_go_before_its_successors(tmp_path: Path) -> None:
    outbox = Outbox("n1", "boot-1", spool=BatchSpool(tmp_path))
    add(outbox, SPILL + 3)
    outbox.spill()
    successor = Outbox("n1", "boot-2", spool=BatchSpool(tmp_path))
    add(successor, 2)
    assert [boot for boot, _ in drained(successor, 50)] == ["boot-1"] * (SPILL + 3) + ["boot-2"] * 2


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Files are made and take half of what is written to them, until the patch is undone."""

    def write_half(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_half)
        yield patch


def test_batches_stay_in_memory_when_the_disk_takes_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, full_disk: pytest.MonkeyPatch
) -> None:
    outbox = Outbox("n1", "boot", spool=BatchSpool(tmp_path))
    add(outbox, SPILL - 1)
    assert outbox.disk_state() == DiskState(), "as ever: they have not waited for long"
    add(outbox, LIMIT + 7 - outbox.waiting)
    assert outbox.disk_state() == DiskState("No space left on device", LIMIT, lost=7, lost_at_s=1.0)
    assert len(caplog.records) == 1, "said once"
    assert not list(tmp_path.iterdir()), "nothing half"
    full_disk.undo()
    add(outbox, 1)
    assert len(list(tmp_path.iterdir())) == 1
    assert outbox.disk_state() == DiskState(lost=7, lost_at_s=1.0)
    assert drained(outbox, 50) == [("boot", seq) for seq in range(8, LIMIT + 9)]


def test_nothing_is_in_memory_alone_any_more_when_all_has_been_sent_from_there(
    tmp_path: Path, full_disk: pytest.MonkeyPatch
) -> None:
    outbox = Outbox("n1", "boot", spool=BatchSpool(tmp_path))
    add(outbox, SPILL + 1)
    assert outbox.disk_state() == DiskState("No space left on device", SPILL + 1)
    assert drained(outbox, 50) == [("boot", seq) for seq in range(1, SPILL + 2)]
    assert outbox.disk_state() == DiskState()


def test_agent_starts_and_goes_on_when_its_spool_cannot_be_made_or_files_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> Callable[..., None]:
        def failing(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        return failing

    folder = tmp_path / "spool"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", fail(errno.EACCES))
        with pytest.raises(PermissionError):
            BatchSpool(folder)
        patch.setattr(Path, "mkdir", fail(errno.ENOSPC))
        spool = BatchSpool(folder)
        with pytest.raises(OSError, match="No space"):
            spool.put([batch(1)])
    spool.put([batch(1)])
    spool.put([batch(2)])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail(errno.EROFS))
        assert drained(spool) == [("boot", 1), ("boot", 2)]
    assert spool.waiting == 0
    assert drained(BatchSpool(folder)) == [("boot", 1), ("boot", 2)], "the ingester knows them"
