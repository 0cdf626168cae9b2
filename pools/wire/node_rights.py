"""What a node's own user may do in Redis: read its desired state, and say how it is.

The keys are those of `redis_keys`. The rules are Redis' and Valkey's (`ACL SETUSER`). They need Redis 7.0: earlier ones
know no keys that may only be read.
"""

from __future__ import annotations

from pools.wire.redis_keys import (
    agent_key,
    alive_key,
    batch_stream,
    celery_prefix,
    certificate_answer_key,
    certificate_asked_key,
    clock_channel,
    desired_key,
    node_queue,
    profiles_key,
)

NODE_USER_PREFIX = "node-"
# EVAL runs ADD_WHILE_ROOM, under the same rights as its caller; what follows XADD is what Celery's transport needs.
COMMANDS = (
    *("ping", "select", "get", "set", "hmget", "subscribe", "unsubscribe", "eval", "xlen", "xadd"),
    *("brpop", "rpop", "rpush", "lpush", "llen", "del", "sadd", "srem", "smembers", "hset", "hget", "hdel", "hlen"),
    *("zadd", "zrem", "zrange", "zrevrangebyscore", "multi", "exec", "discard", "watch", "unwatch", "evalsha"),
    *("script|load", "client|setname", "client|id", "pexpire", "expire"),
)
# By it redis-py says what it is; a server that does not know the command yet refuses rules that name it.
COMMANDS_SINCE_7_2 = ("client|setinfo",)


def node_user(node: str) -> str:
    return NODE_USER_PREFIX + node


def rights_of_node(node: str, password_hash: str) -> list[str]:
    """Returns the rules of a node's user. `password_hash`: SHA-256 of its password, hexadecimal."""
    return [
        *("reset", "resetchannels", "on", f"#{password_hash}"),
        *(f"%R~{key}" for key in (desired_key(node), profiles_key(node), certificate_answer_key(node))),
        *(f"%W~{key}" for key in (agent_key(node), alive_key(node_queue(node)), certificate_asked_key(node))),
        *(f"~{key}" for key in (batch_stream(node), f"{celery_prefix(node)}*")),
        *(f"&{channel}" for channel in (clock_channel(node), f"{celery_prefix(node)}*")),
        *(f"+{command}" for command in COMMANDS),
    ]
