"""Nodes' users in Redis, and the serial numbers that the relay lets in: as the database has them.

A server that starts again, or another one that takes over, has lost them: `bring_up_to_date` is called every few
seconds, compares, and sets what differs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import redis

from pools import wire

NEEDED = "give each node a user of its own: use Redis 7.0 or later, or Valkey"


class RedisRefuses(Exception):
    """The server cannot have users for nodes, or its address may not make them; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Says who may come in. `passwords`: SHA-256 by node; `serials`: node by its certificates' serial numbers."""

    passwords: Mapping[str, str]
    serials: Mapping[str, str]


def bring_up_to_date(client: redis.Redis, wanted: Wanted) -> None:
    """Sets what differs from `wanted`, and ends the connections of those who are no longer in it.

    Raises RedisRefuses, and RedisError.
    """
    try:
        _set_users(client, wanted.passwords)
    except RedisRefuses:
        if wanted.passwords:
            raise
    serials: dict[Any, Any] = dict(wanted.serials)
    there: Any = {serial.decode(): node.decode() for serial, node in _hash(client, wire.CERTIFICATES_KEY).items()}
    if there != serials:
        with client.pipeline(transaction=True) as pipe:
            pipe.delete(wire.CERTIFICATES_KEY)
            if serials:
                pipe.hset(wire.CERTIFICATES_KEY, mapping=serials)
            pipe.execute()


def admit(client: redis.Redis, node: str, password_hash: str, serial: str) -> None:
    """Lets one node in, at once. Raises RedisRefuses, and RedisError."""
    _set_user(client, node, password_hash)
    client.hset(wire.CERTIFICATES_KEY, serial, node)


def expel(client: redis.Redis, node: str) -> None:
    """Ends a node's connections at once, and lets it in no more. Raises RedisError."""
    own = [serial for serial, whose in _hash(client, wire.CERTIFICATES_KEY).items() if whose.decode() == node]
    if own:
        client.hdel(wire.CERTIFICATES_KEY, *own)
    client.acl_deluser(wire.node_user(node))


def _set_users(client: redis.Redis, passwords: Mapping[str, str]) -> None:
    lines, known = _lines(client), _hash(client, wire.NODE_USERS_KEY)
    wrong = [
        node
        for node, password in passwords.items()
        if known.get(node.encode()) != _digest(node, password, lines.get(wire.node_user(node), "")).encode()
    ]
    for node in wrong:
        _set_user(client, node, passwords[node])
    users = {wire.node_user(node) for node in passwords}
    if gone := [name for name in lines if name.startswith(wire.NODE_USER_PREFIX) and name not in users]:
        client.acl_deluser(*gone)
    if dropped := [node for node in known if node.decode() not in passwords]:
        client.hdel(wire.NODE_USERS_KEY, *dropped)
    if wrong:
        lines = _lines(client)
        digests: dict[Any, Any] = {
            node: _digest(node, passwords[node], lines.get(wire.node_user(node), "")) for node in wrong
        }
        client.hset(wire.NODE_USERS_KEY, mapping=digests)


def _digest(node: str, password_hash: str, line: str) -> str:
    """Returns the digest of a user's rules as we write them, and of the line that the server makes of them."""
    return sha256("\n".join([*wire.rights_of_node(node, password_hash), line]).encode()).hexdigest()


def _lines(client: redis.Redis) -> dict[str, str]:
    """Returns each user's rules as the server has them, by name."""
    try:
        found: Any = client.acl_list()
    except redis.ResponseError as error:
        raise _refusal(error) from error
    words = [line.decode() if isinstance(line, bytes) else line for line in found]
    return {line.split(" ", 2)[1]: line for line in words}


def _set_user(client: redis.Redis, node: str, password_hash: str) -> None:
    def allow(rules: Iterable[str]) -> None:
        client.execute_command("ACL SETUSER", wire.node_user(node), *rules)  # type: ignore[no-untyped-call]

    try:
        allow(wire.rights_of_node(node, password_hash))
    except redis.ResponseError as error:
        raise _refusal(error) from error
    with contextlib.suppress(redis.ResponseError):  # Redis 7.0 does not know these, and nodes go on without
        allow(f"+{command}" for command in wire.COMMANDS_SINCE_7_2)


def _refusal(error: redis.ResponseError) -> RedisRefuses:
    said = str(error)
    if "NOPERM" in said or "no permissions" in said:
        return RedisRefuses("the user of REDIS_URL may not make users: allow it the command ACL (`+acl`)")
    return RedisRefuses(f"the server of REDIS_URL cannot {NEEDED} (it says: {said})")


def _hash(client: redis.Redis, key: str) -> dict[bytes, bytes]:
    found: Any = client.hgetall(key)
    return dict(found)
