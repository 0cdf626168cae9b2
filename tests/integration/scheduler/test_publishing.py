"""Publishing against a real Redis: only what has changed is written and read, and the newest state is what stays."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import redis
from django.conf import settings
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from core.engine.corrections import configuration
from core.engine.profiles import profiles_of
from pools import wire
from pools.gateway.fleet.snapshot_reader import SnapshotReader
from scheduler.control.apply import message_writer
from tests.fakes.engine_profiles import rows as measured_rows
from tests.fakes.fleet import FakeFleet, key


@dataclass
class Rows:
    """What stands for the database: read by each publishing, and changed by tests."""

    fleet: wire.Fleet = field(default_factory=lambda: FakeFleet([]).fleet())
    clock: wire.ClockPolicy = field(default_factory=wire.ClockPolicy)
    reads: int = 0

    def read(self, version: int) -> tuple[wire.Fleet, list[wire.DesiredNode]]:
        self.reads += 1
        nodes = [wire.DesiredNode(node, version, float(version), [], self.clock) for node in self.fleet.nodes]
        return replace(self.fleet, version=version), nodes

    def revoke(self, number: int) -> None:
        self.fleet = replace(self.fleet, keys=[one for one in self.fleet.keys if one.key_id != number])

    def grant(self, *numbers: int) -> None:
        self.fleet = replace(self.fleet, keys=[*self.fleet.keys, *(key(f"secret-{n}", n) for n in numbers)])

    def rename_model(self, model: str) -> None:
        first, *others = self.fleet.services
        self.fleet = replace(self.fleet, services=[replace(first, model=model), *others])


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
async def reader(redis_client: redis.Redis) -> AsyncIterator[SnapshotReader]:
    async with redis.asyncio.Redis.from_url(settings.REDIS_URL) as client:
        yield SnapshotReader(client)


def index(client: redis.Redis) -> wire.FleetIndex:
    return wire.decode(client.get(wire.FLEET_INDEX_KEY), wire.FleetIndex)


def desired(client: redis.Redis, node: str = "node-1") -> wire.DesiredNode:
    return wire.decode(client.get(wire.desired_key(node)), wire.DesiredNode)


async def read(reader: SnapshotReader) -> wire.Fleet:
    fleet = await reader.read()
    assert fleet is not None
    return fleet


def dumped(client: redis.Redis) -> dict[bytes, bytes]:
    return {name: client.dump(name) for name in client.keys("greenserve:*")}


def put_back(client: redis.Redis, saved: dict[bytes, bytes]) -> None:
    client.delete("greenserve:none", *client.keys("greenserve:*"))
    for name, data in saved.items():
        client.restore(name, 60_000, data)


def same(fleet: wire.Fleet, other: wire.Fleet) -> bool:
    return (
        fleet.services == other.services
        and fleet.nodes == other.nodes
        and sorted(one.key_hash for one in fleet.keys) == sorted(one.key_hash for one in other.keys)
    )


def test_nothing_but_the_index_is_written_when_nothing_has_changed(redis_client: redis.Redis, rows: Rows) -> None:
    message_writer.write(redis_client, rows.read)
    before = index(redis_client)
    redis_client.delete(wire.desired_key("node-1"), wire.FLEET_SERVICES_KEY, wire.FLEET_KEYS_KEY, wire.FLEET_KEY)
    message_writer.write(redis_client, rows.read)
    after = index(redis_client)
    assert after.version > before.version
    assert (after.services, after.keys, after.keys_since) == (before.services, before.keys, before.keys_since)
    missing = wire.desired_key("node-1"), wire.FLEET_SERVICES_KEY, wire.FLEET_KEYS_KEY, wire.FLEET_KEY
    assert redis_client.exists(*missing) == 0


async def test_one_part_is_written_and_read_when_one_part_has_changed(
    redis_client: redis.Redis, rows: Rows, reader: SnapshotReader
) -> None:
    message_writer.write(redis_client, rows.read)
    before, node = await read(reader), desired(redis_client)
    rows.rename_model("Other-70B")
    message_writer.write(redis_client, rows.read)
    after = await read(reader)
    assert [service.model for service in after.services] == ["Other-70B", "Other"]
    assert after.services[1] is before.services[1]
    assert after.keys is before.keys
    assert desired(redis_client).version == node.version
    rows.clock = wire.ClockPolicy("profile")
    message_writer.write(redis_client, rows.read)
    again = await read(reader)
    assert again.services[0] is after.services[0]
    assert (desired(redis_client).clock.policy, desired(redis_client).version) == ("profile", again.version)


async def test_a_profile_is_written_and_read_once_and_gone_when_it_is_withdrawn(
    redis_client: redis.Redis, rows: Rows, reader: SnapshotReader
) -> None:
    (profile,) = profiles_of(measured_rows())
    kind = configuration(profile.model, profile.gpu, profile.tp, profile.engine)
    rows.fleet = replace(rows.fleet, measured=[wire.MeasuredEngine(*kind, profile.version)], profiles=[profile])
    message_writer.write(redis_client, rows.read)
    before = await read(reader)
    assert before.profiles == [profile]
    assert wire.decode(redis_client.get(wire.FLEET_KEY), wire.Fleet).profiles == []
    redis_client.delete(wire.PROFILES_KEY)
    message_writer.write(redis_client, rows.read)
    after = await read(reader)
    assert after.profiles[0] is before.profiles[0]
    assert not redis_client.exists(wire.PROFILES_KEY)
    rows.fleet = replace(rows.fleet, measured=[], profiles=[])
    message_writer.write(redis_client, rows.read)
    assert (await read(reader)).profiles == []
    assert not redis_client.exists(wire.PROFILES_KEY)


async def test_changed_keys_alone_are_read_when_a_key_is_revoked_and_another_made(
    redis_client: redis.Redis, rows: Rows, reader: SnapshotReader
) -> None:
    rows.grant(*range(10, 60))
    message_writer.write(redis_client, rows.read)
    known = {one.key_id: one for one in (await read(reader)).keys}
    rows.revoke(10)
    message_writer.write(redis_client, rows.read)
    rows.grant(70)
    message_writer.write(redis_client, rows.read)
    assert redis_client.zcard(wire.FLEET_KEYS_CHANGED_KEY) == 2
    now = {one.key_id: one for one in (await read(reader)).keys}
    assert set(now) == set(known) - {10} | {70}
    assert all(now[number] is known[number] for number in set(now) - {70})


async def test_all_keys_are_read_when_more_have_changed_than_are_listed(
    redis_client: redis.Redis, rows: Rows, reader: SnapshotReader
) -> None:
    message_writer.write(redis_client, rows.read)
    await read(reader)
    rows.grant(10)
    message_writer.write(redis_client, rows.read)
    rows.grant(*range(11, 11 + message_writer.LISTED_KEYS))
    message_writer.write(redis_client, rows.read)
    assert redis_client.zcard(wire.FLEET_KEYS_CHANGED_KEY) == 0
    assert same(await read(reader), rows.fleet)


@pytest.mark.parametrize("lost", [wire.FLEET_INDEX_KEY, wire.PUBLISHED_KEY])
async def test_everything_is_written_when_what_was_published_is_not_known(
    redis_client: redis.Redis, rows: Rows, reader: SnapshotReader, lost: str
) -> None:
    message_writer.write(redis_client, rows.read)
    await read(reader)
    stranger = wire.encode(key("stranger", 99))
    redis_client.hset(wire.FLEET_KEYS_KEY, "stranger", stranger)
    redis_client.delete(lost, wire.desired_key("node-1"), wire.FLEET_SERVICES_KEY)
    rows.revoke(1)
    message_writer.write(redis_client, rows.read)
    assert desired(redis_client).node == "node-1"
    assert same(await read(reader), rows.fleet)


async def test_parts_are_read_again_when_redis_has_lost_what_was_published_last(
    redis_client: redis.Redis, rows: Rows, reader: SnapshotReader
) -> None:
    message_writer.write(redis_client, rows.read)
    older, saved = rows.fleet, dumped(redis_client)
    rows.rename_model("Other-70B")
    rows.revoke(1)
    message_writer.write(redis_client, rows.read)
    assert same(await read(reader), rows.fleet)
    put_back(redis_client, saved)
    assert same(await read(reader), older)


async def test_fleet_is_read_whole_when_a_scheduler_of_0_1_0_has_taken_over(
    redis_client: redis.Redis, rows: Rows, reader: SnapshotReader
) -> None:
    message_writer.write(redis_client, rows.read)
    await read(reader)
    assert 0 < redis_client.ttl(wire.FLEET_INDEX_KEY) <= wire.FLEET_INDEX_TTL_S
    redis_client.delete(wire.FLEET_INDEX_KEY)
    rows.revoke(1)
    redis_client.set(wire.FLEET_KEY, wire.encode(rows.fleet))
    assert await reader.read() == rows.fleet


def test_gateways_of_0_1_0_get_the_whole_fleet_when_anything_of_it_has_changed(
    redis_client: redis.Redis, rows: Rows
) -> None:
    channel = redis_client.pubsub(ignore_subscribe_messages=True)
    channel.subscribe(wire.FLEET_CHANNEL)
    for change in (lambda: None, lambda: rows.revoke(1), lambda: rows.rename_model("Other-70B")):
        change()
        message_writer.write(redis_client, rows.read)
        whole = wire.decode(redis_client.get(wire.FLEET_KEY), wire.Fleet)
        assert same(whole, rows.fleet)
        said = [message for _ in range(3) if (message := channel.get_message(timeout=0.2))]
        assert [int(message["data"]) for message in said] == [whole.version]
    message_writer.write(redis_client, rows.read)
    assert channel.get_message(timeout=0.2) is None
    assert channel.get_message(timeout=0.2) is None
    channel.close()


def test_what_is_gone_is_removed_when_a_service_ends(redis_client: redis.Redis, rows: Rows) -> None:
    message_writer.write(redis_client, rows.read)
    rows.fleet = replace(rows.fleet, services=rows.fleet.services[1:])
    message_writer.write(redis_client, rows.read)
    assert redis_client.hkeys(wire.FLEET_SERVICES_KEY) == [b"other-model"]
    assert list(index(redis_client).services) == ["other-model"]


def test_rows_are_read_again_when_another_published_between_reading_and_writing(
    redis_client: redis.Redis, rows: Rows
) -> None:
    def slow(version: int) -> tuple[wire.Fleet, list[wire.DesiredNode]]:
        found = rows.read(version)
        if rows.reads == 1:
            rows.rename_model("Newer-70B")
            message_writer.write(redis_client, rows.read)
        return found

    message_writer.write(redis_client, slow)
    assert rows.reads == 3
    assert b"Newer-70B" in redis_client.hget(wire.FLEET_SERVICES_KEY, rows.fleet.services[0].name)


def test_the_latest_state_stays_when_many_publish_at_once(redis_client: redis.Redis, rows: Rows) -> None:
    changing = threading.Lock()

    def change_and_publish(number: int) -> None:
        with redis.Redis.from_url(settings.REDIS_URL) as client:
            for turn in range(10):
                with changing:
                    rows.rename_model(f"{number}-{turn}")
                    rows.grant(100 * number + turn)
                message_writer.write(client, rows.read)

    threads = [threading.Thread(target=change_and_publish, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {
        wire.decode(data, wire.FleetService).name: wire.decode(data, wire.FleetService)
        for data in redis_client.hvals(wire.FLEET_SERVICES_KEY)
    }
    assert found == {service.name: service for service in rows.fleet.services}
    hashes = {one.key_hash.encode() for one in rows.fleet.keys}
    assert set(redis_client.hkeys(wire.FLEET_KEYS_KEY)) == hashes


STEPS = st.one_of(
    st.tuples(st.sampled_from(["grant", "revoke", "model"]), st.integers(1, 4)),
    st.tuples(st.sampled_from(["publish", "read", "publish", "read", "lose", "save", "restore"]), st.just(0)),
)


@hypothesis_settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=30))
async def test_reader_ends_with_what_was_published_whatever_happened_before(
    redis_client: redis.Redis, steps: list[tuple[str, int]]
) -> None:
    """Losses are of all that Redis held, or of all since it was saved. A restored one is published to before it is
    read: else, see `message_writer.WHOLE_PERIOD_S`."""
    rows, saved = Rows(), {}
    client = redis.asyncio.Redis.from_url(settings.REDIS_URL)
    reader = SnapshotReader(client)
    for name, number in [("lose", 0), ("publish", 0), ("read", 0), *steps, ("publish", 0), ("read", 0)]:
        match name:
            case "grant" if all(one.key_id != number for one in rows.fleet.keys):
                rows.grant(number)
            case "revoke":
                rows.revoke(number)
            case "model":
                rows.rename_model(f"model-{number}")
            case "publish":
                message_writer.write(redis_client, rows.read)
            case "read":
                await reader.read()
            case "save":
                saved = dumped(redis_client)
            case "lose" | "restore":
                put_back(redis_client, saved if name == "restore" else {})
                await reader.read()  # it comes round before the next publishing
    assert same(await read(reader), rows.fleet)
    await client.aclose()
