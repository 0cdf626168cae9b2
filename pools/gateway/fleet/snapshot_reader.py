"""Reads the fleet from Redis, and of what it has read already only what has changed since."""

from __future__ import annotations

from typing import Any

import redis.asyncio as redis

from pools import wire
from pools.measured_engines import ReadProfiles


class SnapshotReader:
    """Calls raise RedisError and msgspec.DecodeError; what was read until then is kept."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._services: dict[str, tuple[int, wire.FleetService]] = {}
        self._keys: dict[bytes, wire.FleetKey] = {}
        self._listed_keys: list[wire.FleetKey] = []
        self._keys_version = 0
        self._profiles = ReadProfiles()

    async def read(self) -> wire.Fleet | None:
        """Returns the fleet; None: none has been published. `keys` is the same list until a key has changed."""
        said = await self._redis.get(wire.FLEET_INDEX_KEY)
        if said is None:  # the scheduler is one of 0.1.0, or away for a while
            whole = await self._redis.get(wire.FLEET_KEY)
            return None if whole is None else wire.decode(whole, wire.Fleet)
        index = wire.decode(said, wire.FleetIndex)
        await self._read_services(index.services)
        if index.keys != self._keys_version:
            await self._read_keys(index)
        await self._read_profiles(index)
        services = [service for _, service in self._services.values()]
        return wire.Fleet(
            *(index.version, index.at_s, services, self._listed_keys, index.nodes, index.gpu_types),
            index.measured,
            self._profiles.profiles(),
        )

    async def _read_services(self, versions: dict[str, int]) -> None:
        """What is missing has gone since the index was written: the next index says so."""
        moved = [name for name, version in versions.items() if self._services.get(name, (0,))[0] != version]
        found: Any = await self._redis.hmget(wire.FLEET_SERVICES_KEY, moved) if moved else []
        for name, data in zip(moved, found, strict=True):
            if data is not None:
                self._services[name] = versions[name], wire.decode(data, wire.FleetService)
        self._services = {name: self._services[name] for name in versions if name in self._services}

    async def _read_profiles(self, index: wire.FleetIndex) -> None:
        if missing := self._profiles.missing(index.measured):
            found: Any = await self._redis.hmget(wire.PROFILES_KEY, missing)
            self._profiles.add(dict(zip(missing, found, strict=True)))

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
        self._keys = {hashed: key for hashed, key in known.items() if hashed not in found} | now
        self._listed_keys = list(self._keys.values())
        self._keys_version = index.keys
