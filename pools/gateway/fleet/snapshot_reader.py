"""Reads the fleet from Redis, and of what it has read already only what has changed since."""

from __future__ import annotations

import logging
from typing import Any

import redis.asyncio as redis

from pools import wire
from pools.measured_engines import ReadProfiles
from pools.wire.snapshot_signature import NotSigned, SnapshotVerifier, digest, digest_of_all

log = logging.getLogger(__name__)


class SnapshotReader:
    """Calls raise RedisError, msgspec.DecodeError and NotSigned; what was read until then is kept.

    `verifier`: knows who signs snapshots; None: they are believed as they are.
    """

    def __init__(self, client: redis.Redis, verifier: SnapshotVerifier | None = None) -> None:
        self._redis = client
        self._verifier = verifier
        self._last: wire.Fleet | None = None
        self._complaint = ""  # that was logged and lasts
        self._services: dict[str, tuple[int, wire.FleetService]] = {}
        self._keys: dict[bytes, wire.FleetKey] = {}
        self._listed_keys: list[wire.FleetKey] = []
        self._key_digests: dict[bytes, bytes] = {}
        self._keys_version = 0
        self._profiles = ReadProfiles()

    async def read(self) -> wire.Fleet | None:
        """Returns the fleet; None: none has been published. `keys` is the same list until a key has changed.

        Where something is not rightly signed it is the fleet before, and an error is logged once.
        """
        try:
            self._last = await self._read()
            self._complaint = ""
        except NotSigned as error:
            if self._last is None:
                raise
            if self._complaint != str(error):
                self._complaint = str(error)
                log.error("%s: what was published before stays in force", error)
        return self._last

    async def _read(self) -> wire.Fleet | None:
        try:
            return await self._read_parts()
        except NotSigned:  # it may have been published between two calls
            return await self._read_parts()

    async def _read_parts(self) -> wire.Fleet | None:
        found: Any = await self._redis.mget([wire.FLEET_INDEX_KEY, wire.FLEET_INDEX_SIGNATURE_KEY])
        said, signature = found
        if said is None:  # the scheduler is one of 0.1.0, or away for a while
            found = await self._redis.mget([wire.FLEET_KEY, wire.FLEET_SIGNATURE_KEY])
            whole, signature = found
            if whole is not None and self._verifier is not None:
                self._verifier.check("the fleet as a whole", whole, signature)
            return None if whole is None else wire.decode(whole, wire.Fleet)
        if self._verifier is not None:
            self._verifier.check("the fleet's index", said, signature)
        index = wire.decode(said, wire.FleetIndex)
        await self._read_services(index)
        if index.keys != self._keys_version:
            await self._read_keys(index)
        await self._read_profiles(index)
        services = [service for _, service in self._services.values()]
        return wire.Fleet(
            *(index.version, index.at_s, services, self._listed_keys, index.nodes, index.gpu_types),
            index.measured,
            self._profiles.profiles(),
        )

    async def _read_services(self, index: wire.FleetIndex) -> None:
        """What is missing has gone since the index was written: the next index says so."""
        versions = index.services
        moved = [name for name, version in versions.items() if self._services.get(name, (0,))[0] != version]
        found: Any = await self._redis.hmget(wire.FLEET_SERVICES_KEY, moved) if moved else []
        for name, data in zip(moved, found, strict=True):
            if data is not None:
                self._believe(f"service {name}", digest(data).hex(), index.service_digests.get(name))
                self._services[name] = versions[name], wire.decode(data, wire.FleetService)
        self._services = {name: self._services[name] for name in versions if name in self._services}

    async def _read_profiles(self, index: wire.FleetIndex) -> None:
        if missing := self._profiles.missing(index.measured):
            found: Any = await self._redis.hmget(wire.PROFILES_KEY, missing)
            for version, data in zip(missing, found, strict=True):
                if data is not None:
                    self._believe(f"profile {version}", digest(data).hex(), index.profile_digests.get(version))
            self._profiles.add(dict(zip(missing, found, strict=True)))

    def _believe(self, what: str, found: str, signed: str | None) -> None:
        """Raises NotSigned where a part is another than the index says. It may have been published just now: then the
        next index says so."""
        if self._verifier is not None and found != signed:
            raise NotSigned(f"{what} is not what the control plane signed")

    async def _read_keys(self, index: wire.FleetIndex) -> None:
        """A version before this reader's own is of a Redis that has lost what came after: then all is read."""
        known, found = self._keys, {}
        if index.keys_since <= self._keys_version < index.keys:
            since = f"({self._keys_version}"
            changed: Any = await self._redis.zrangebyscore(wire.FLEET_KEYS_CHANGED_KEY, since, "+inf")
            if changed:
                found = dict(zip(changed, await self._redis.hmget(wire.FLEET_KEYS_KEY, changed), strict=True))
        else:
            known, found = {}, await self._redis.hgetall(wire.FLEET_KEYS_KEY)
        now = {hashed: wire.decode(data, wire.FleetKey) for hashed, data in found.items() if data is not None}
        keys = {hashed: key for hashed, key in known.items() if hashed not in found} | now
        if self._verifier is not None:
            fresh = {hashed: digest(found[hashed]) for hashed in now}
            digests = {hashed: fresh.get(hashed) or self._key_digests[hashed] for hashed in keys}
            self._believe("the list of keys", digest_of_all(digests.values()), index.keys_digest)
            self._key_digests = digests
        self._keys = keys
        self._listed_keys = list(self._keys.values())
        self._keys_version = index.keys
