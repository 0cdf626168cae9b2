"""Writes messages for agents and gateways to Redis: those that have changed since the last publishing.

Every publishing writes the index, and who publishes watches it. When another came between, nothing is written and
everything is read again: what is written last was read last, and an older state never overwrites a newer one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import redis
from msgspec.structs import replace
from redis.client import Pipeline

from pools import wire
from pools.wire.snapshot_signature import SnapshotSigner, digest, digest_of_all

LISTED_KEYS = 1_000  # changes of keys; when there are more, gateways read all keys once
WHOLE_PERIOD_S = 300  # everything is written anew so often, whatever else may have written there
_NODES, _KEYS, _GPU_TYPES, _MEASURED = "nodes", "keys", "gpu types", "measured"
_SERVICE, _PROFILE, _PROFILES = "service:", "profile:", "profiles:"  # of one version; those of a node

Read = Callable[[int], tuple[wire.Fleet, Sequence[wire.DesiredNode]]]


def write(client: redis.Redis, read: Read, signer: SnapshotSigner | None = None) -> None:
    """Publishes what `read` gives, and announces to gateways what concerns them.

    Args:
        read: Makes the messages under a version. It is called again when somebody else published meanwhile. When that
            happens twice nothing is left to do: the later one began after this did, and has read what this was to say.
        signer: Signs the index; None: it stays unsigned, and gateways that know a key refuse it.
    """
    for _ in range(2):
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(wire.FLEET_INDEX_KEY)  # type: ignore[no-untyped-call]
            _queue(pipe, read, signer)
            try:
                pipe.execute()
            except redis.WatchError:
                continue
            return


def _queue(pipe: Pipeline, read: Read, signer: SnapshotSigner | None) -> None:
    """Compares what was published last with what is to be published now, and queues the commands for the difference."""
    last, digests = _published(pipe)
    whole = not digests
    version = max(time.time_ns() // 1_000_000, last.version + 1)
    fleet, nodes = read(version)
    keys = {key.key_hash.encode(): wire.encode(key) for key in fleet.keys}
    contents = {profile.version: wire.encode_profile(profile) for profile in fleet.profiles}
    parts = _digests(fleet, nodes, keys)
    changed = {part for part, digest in parts.items() if digests.get(part) != digest}
    gone = digests.keys() - parts.keys()
    put, dropped = _changed_keys(pipe, keys, whole) if _KEYS in changed else ({}, set())
    listed: Any = pipe.zcard(wire.FLEET_KEYS_CHANGED_KEY)
    relist = whole or listed + len(put) + len(dropped) > LISTED_KEYS
    names = [service.name for service in fleet.services]
    index = wire.FleetIndex(
        version,
        fleet.at_s,
        fleet.nodes,
        services={name: version if _SERVICE + name in changed else last.services.get(name, version) for name in names},
        keys=version if _KEYS in changed else last.keys,
        keys_since=version if relist else last.keys_since,
        gpu_types=fleet.gpu_types,
        measured=fleet.measured,
        service_digests={service.name: parts[_SERVICE + service.name] for service in fleet.services},
        profile_digests={version: digest(data).hex() for version, data in contents.items()},
        keys_digest=parts[_KEYS],
    )
    pipe.multi()
    if whole:
        pipe.delete(wire.PUBLISHED_KEY, wire.FLEET_SERVICES_KEY, wire.FLEET_KEYS_KEY, wire.PROFILES_KEY)
    for node in nodes:
        if wire.desired_key(node.node) in changed:
            pipe.set(wire.desired_key(node.node), wire.encode(node))
        if _PROFILES + node.node in changed:
            pipe.delete(wire.profiles_key(node.node))
            if own := _named(node, contents):
                pipe.hset(wire.profiles_key(node.node), mapping=own)
    for service in fleet.services:
        if _SERVICE + service.name in changed:
            pipe.hset(wire.FLEET_SERVICES_KEY, service.name, wire.encode(service))
    for profile in fleet.profiles:
        if _PROFILE + profile.version in changed:
            pipe.hset(wire.PROFILES_KEY, profile.version, contents[profile.version])
    for part in gone:
        pipe.hdel(wire.PUBLISHED_KEY, part)
        pipe.hdel(wire.FLEET_SERVICES_KEY, part.removeprefix(_SERVICE))
        pipe.hdel(wire.PROFILES_KEY, part.removeprefix(_PROFILE))
        if part.startswith(_PROFILES):
            pipe.delete(wire.profiles_key(part.removeprefix(_PROFILES)))
    if put:
        pipe.hset(wire.FLEET_KEYS_KEY, mapping=put)
    if dropped:
        pipe.hdel(wire.FLEET_KEYS_KEY, *dropped)
    if relist:
        pipe.delete(wire.FLEET_KEYS_CHANGED_KEY)
    elif put or dropped:
        pipe.zadd(wire.FLEET_KEYS_CHANGED_KEY, dict.fromkeys([*put, *dropped], version))
    said = wire.encode(index)
    pipe.set(wire.FLEET_INDEX_KEY, said, ex=wire.FLEET_INDEX_TTL_S)
    if signer is not None:
        pipe.set(wire.FLEET_INDEX_SIGNATURE_KEY, signer.sign(said), ex=wire.FLEET_INDEX_TTL_S)
    if changed:
        pipe.hset(wire.PUBLISHED_KEY, mapping={part: parts[part] for part in changed})
    if whole:
        pipe.expire(wire.PUBLISHED_KEY, WHOLE_PERIOD_S)
    if any(part in (_NODES, _KEYS, _GPU_TYPES, _MEASURED) or part.startswith(_SERVICE) for part in changed | gone):
        together = wire.encode(replace(fleet, profiles=[]))
        pipe.set(wire.FLEET_KEY, together)
        if signer is not None:
            pipe.set(wire.FLEET_SIGNATURE_KEY, signer.sign(together))
        pipe.publish(wire.FLEET_CHANNEL, str(version))


def _published(pipe: Pipeline) -> tuple[wire.FleetIndex, dict[str, str]]:
    """Returns the last index and the digests of all parts. No digests: everything is to be written."""
    said: Any = pipe.get(wire.FLEET_INDEX_KEY)
    digests: Any = pipe.hgetall(wire.PUBLISHED_KEY)
    if said is None:
        return wire.FleetIndex(0, 0.0, [], {}, 0, 0), {}
    return wire.decode(said, wire.FleetIndex), {part.decode(): digest.decode() for part, digest in digests.items()}


def _digests(fleet: wire.Fleet, nodes: Sequence[wire.DesiredNode], keys: Mapping[bytes, bytes]) -> dict[str, str]:
    """Returns the digest of each part: of all that it says, but for version and time. `keys`: encoded, by hash."""
    parts = {wire.desired_key(node.node): wire.encode(replace(node, version=0, published_at_s=0.0)) for node in nodes}
    parts |= {_SERVICE + service.name: wire.encode(service) for service in fleet.services}
    parts[_NODES] = msgspec.json.encode(fleet.nodes)
    parts[_GPU_TYPES] = msgspec.json.encode(fleet.gpu_types)
    parts[_MEASURED] = msgspec.json.encode(fleet.measured)
    parts |= {_PROFILE + profile.version: b"" for profile in fleet.profiles}
    there = {profile.version: b"" for profile in fleet.profiles}
    parts |= {_PROFILES + node.node: " ".join(sorted(_named(node, there))).encode() for node in nodes}
    found = {part: digest(data).hex() for part, data in parts.items()}
    return {**found, _KEYS: digest_of_all(map(digest, keys.values()))}


def _named(node: wire.DesiredNode, contents: Mapping[str, bytes]) -> dict[Any, bytes]:
    """Returns the contents of the profiles that a node's desired state names, by their versions."""
    named = {one.profile for one in node.measured}
    return {version: data for version, data in contents.items() if version in named}


def _changed_keys(pipe: Pipeline, keys: Mapping[bytes, bytes], whole: bool) -> tuple[dict[Any, bytes], set[bytes]]:
    """Returns the keys to write, encoded by their hashes, and the hashes of those to remove."""
    known: Any = {} if whole else pipe.hgetall(wire.FLEET_KEYS_KEY)
    return {hashed: data for hashed, data in keys.items() if known.get(hashed) != data}, known.keys() - keys.keys()
