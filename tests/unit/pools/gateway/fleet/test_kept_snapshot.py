"""The fleet that a gateway keeps on disk, for a start at which nobody can be heard."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import msgspec
import pytest

from pools import wire
from pools.gateway.fleet.kept_snapshot import OLDEST_S, KeptFleet, KeptSnapshot
from pools.gateway.fleet.view import FleetView
from pools.gateway.redis_tasks import Refresher
from tests.fakes.fleet import MODEL, SECRET, FakeFleet


async def keep(tmp_path: Path, fake: FakeFleet) -> KeptSnapshot:
    """What a gateway leaves that has read the fleet once."""
    kept = KeptSnapshot(tmp_path, "gateway")
    refresher = Refresher(FleetView(), fake, kept=kept)
    await refresher.refresh()
    refresher.keep()
    return kept


async def test_gateway_knows_keys_and_instances_when_it_starts_without_redis(tmp_path: Path) -> None:
    fake = FakeFleet(["http://127.0.0.1:1"])
    kept = await keep(tmp_path, fake)
    fake.fails, view = True, FleetView()
    refresher = Refresher(view, fake, kept=kept)
    refresher.recall()
    with pytest.raises(ConnectionError):
        await refresher.refresh()
    assert view.key(SECRET.encode()) is not None
    (instance,) = view.instances()
    assert (instance.silent, instance.lost, view.not_ready()) == (True, True, "no instance is ready")
    fake.fails = False
    await refresher.refresh()
    assert view.services[MODEL].ready == [instance]
    assert not instance.lost, "its agent is heard"


async def test_instances_of_silent_agents_are_remembered_when_only_redis_is_there(tmp_path: Path) -> None:
    fake = FakeFleet(["http://127.0.0.1:1"])
    kept = await keep(tmp_path, fake)
    fake.states = dict  # type: ignore[method-assign]
    view = FleetView()
    refresher = Refresher(view, fake, kept=kept)
    refresher.recall()
    await refresher.refresh()
    (instance,) = view.instances()
    assert instance.lost, "until it answers itself"
    assert view.services[MODEL].coming


async def test_file_is_for_its_owner_alone_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    fake = FakeFleet(["http://127.0.0.1:1"])
    kept = await keep(tmp_path, fake)
    path = tmp_path / "gateway.fleet.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.with_name(f"{path.name}.new").write_text("half a fleet: its gateway was killed")
    kept.write(fake.fleet(), {})
    assert not path.with_name(f"{path.name}.new").exists()
    found = kept.read()
    assert found is not None
    assert found.states == {}
    refresher = Refresher(FleetView(), fake, kept=kept)
    refresher.keep()
    assert kept.read() == found, "nothing was read since, and nothing is written"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no JSON",
        b"{}",
        msgspec.json.encode(KeptFleet(time.time() - OLDEST_S - 60.0, wire.Fleet(1, 0.0, [], [], []), {})),
    ],
)
def test_gateway_starts_without_a_file_that_it_cannot_use(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    kept = KeptSnapshot(tmp_path, "gateway")
    assert kept.read() is None
    assert not caplog.records, "a first start"
    (tmp_path / "gateway.fleet.json").write_bytes(data)
    assert kept.read() is None
    assert "left aside" in caplog.records[0].getMessage()
