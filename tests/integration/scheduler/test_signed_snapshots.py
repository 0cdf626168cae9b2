"""A gateway puts in force what the control plane signed, and names what it refuses, whoever wrote it to Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import redis
from django.conf import settings

from pools import wire
from pools.gateway.fleet.snapshot_reader import SnapshotReader
from pools.wire.snapshot_signature import NotSigned, SnapshotSigner, SnapshotVerifier
from scheduler.control.apply import message_writer
from tests.fakes.fleet import key
from tests.integration.scheduler.test_publishing import Rows, same

SIGNER = SnapshotSigner.made()


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
async def reader(redis_client: redis.Redis) -> AsyncIterator[SnapshotReader]:
    async with redis.asyncio.Redis.from_url(settings.REDIS_URL) as client:
        yield SnapshotReader(client, SnapshotVerifier(SIGNER.public_pem))


def forged_index(client: redis.Redis) -> None:
    said = wire.decode(client.get(wire.FLEET_INDEX_KEY), wire.FleetIndex)  # type: ignore[arg-type]
    client.set(wire.FLEET_INDEX_KEY, wire.encode(wire.FleetIndex(said.version + 1, 1.0, ["evil"], {}, 0, 0)))


def unsigned(client: redis.Redis) -> None:
    client.delete(wire.FLEET_INDEX_SIGNATURE_KEY)


def signed_by_another(client: redis.Redis) -> None:
    said = client.get(wire.FLEET_INDEX_KEY)
    client.set(wire.FLEET_INDEX_SIGNATURE_KEY, SnapshotSigner.made().sign(said))  # type: ignore[arg-type]


def only_the_old_form(client: redis.Redis) -> None:
    """What a gateway of 0.1.0 believes."""
    client.delete(wire.FLEET_INDEX_KEY)
    client.set(wire.FLEET_KEY, wire.encode(wire.Fleet(10**15, 1.0, [], [key("forged", 99)], ["evil"])))


def forged_service(client: redis.Redis) -> None:
    name = client.hkeys(wire.FLEET_SERVICES_KEY)[0]  # type: ignore[index]
    data = client.hget(wire.FLEET_SERVICES_KEY, name)
    client.hset(wire.FLEET_SERVICES_KEY, name, data.replace(b"chat", b"evil") + b" ")  # type: ignore[union-attr,arg-type]


def forged_key(client: redis.Redis) -> None:
    one = key("forged", 99)
    client.hset(wire.FLEET_KEYS_KEY, one.key_hash, wire.encode(one))


FORGERIES: dict[str, tuple[Callable[[redis.Redis], None], str]] = {
    "an index": (forged_index, "the fleet's index is not signed by the control plane"),
    "no signature": (unsigned, "the fleet's index is not signed"),
    "another's signature": (signed_by_another, "the fleet's index is not signed by the control plane"),
    "the form of 0.1.0": (only_the_old_form, "the fleet as a whole is not signed by the control plane"),
    "a service": (forged_service, "service .* is not what the control plane signed"),
    "a key": (forged_key, "the list of keys is not what the control plane signed"),
}


@pytest.mark.parametrize(("forge", "words"), FORGERIES.values(), ids=FORGERIES)
async def test_forgery_is_refused_and_named(
    redis_client: redis.Redis, rows: Rows, reader: SnapshotReader, forge: Callable[[redis.Redis], None], words: str
) -> None:
    message_writer.write(redis_client, rows.read, SIGNER)
    forge(redis_client)
    with pytest.raises(NotSigned, match=words):
        await reader.read()


@pytest.mark.parametrize("forge", [forged_index, unsigned, only_the_old_form])
async def test_what_was_there_before_stays_in_force_until_it_is_rightly_signed(
    redis_client: redis.Redis,
    rows: Rows,
    reader: SnapshotReader,
    forge: Callable[[redis.Redis], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    message_writer.write(redis_client, rows.read, SIGNER)
    before = await reader.read()
    forge(redis_client)
    for _ in range(3):
        assert await reader.read() is before
    assert caplog.text.count("what was published before stays in force") == 1
    rows.grant(7)
    message_writer.write(redis_client, rows.read, SIGNER)
    after = await reader.read()
    assert after is not None
    assert same(after, rows.fleet)


async def test_changes_are_followed_part_by_part(redis_client: redis.Redis, rows: Rows, reader: SnapshotReader) -> None:
    steps: list[Callable[[], None]] = [
        lambda: None,
        lambda: rows.grant(3, 4, 5),
        lambda: rows.revoke(4),
        lambda: rows.rename_model("Other-70B"),
        lambda: rows.grant(*range(6, 12)),
    ]
    for step in steps:
        step()
        message_writer.write(redis_client, rows.read, SIGNER)
        found = await reader.read()
        assert found is not None
        assert same(found, rows.fleet)


async def test_fleet_as_a_whole_is_believed_when_it_is_signed(
    redis_client: redis.Redis, rows: Rows, reader: SnapshotReader
) -> None:
    """The control plane is away for longer than its index lasts, and a gateway starts."""
    message_writer.write(redis_client, rows.read, SIGNER)
    redis_client.delete(wire.FLEET_INDEX_KEY)
    found = await reader.read()
    assert found is not None
    assert same(found, rows.fleet)


async def test_reader_waits_for_nothing_while_publishing_goes_on(
    redis_client: redis.Redis, rows: Rows, reader: SnapshotReader, caplog: pytest.LogCaptureFixture
) -> None:
    message_writer.write(redis_client, rows.read, SIGNER)
    await reader.read()

    def publish() -> None:
        for n in range(20):
            rows.grant(100 + n)
            message_writer.write(redis_client, rows.read, SIGNER)

    publishing = asyncio.create_task(asyncio.to_thread(publish))
    while not publishing.done():
        assert await reader.read() is not None
    await publishing
    found = await reader.read()
    assert found is not None
    assert same(found, rows.fleet)
