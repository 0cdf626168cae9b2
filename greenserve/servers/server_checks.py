"""Do the servers that the environment names answer, and are they new enough? Each says what it found, or why not."""

from __future__ import annotations

from greenserve.masking import masked
from greenserve.process import StartError

POSTGRES_AT_LEAST = 14
REDIS_AT_LEAST = (6, 2)
TIMEOUT_S = 5


def postgres(url: str, timeout_s: int = TIMEOUT_S) -> str:
    """Raises StartError."""
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=timeout_s) as connection:
            number = connection.info.server_version
    except psycopg.Error as error:
        raise StartError(masked(f"DATABASE_URL: {str(error).splitlines()[0]}", url)) from None
    if number // 10000 < POSTGRES_AT_LEAST:
        raise StartError(f"DATABASE_URL: version {number // 10000} is too old, {POSTGRES_AT_LEAST} or newer is needed")
    return f"DATABASE_URL answers (version {number // 10000}.{number % 10000})"


def redis(url: str) -> str:
    """Raises StartError."""
    import redis as client

    try:
        with client.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S) as connection:
            number = str(connection.info("server")["redis_version"])
    except client.RedisError as error:
        raise StartError(masked(f"REDIS_URL: {error}", url)) from None
    if tuple(int(part) for part in number.split(".")[:2]) < REDIS_AT_LEAST:
        raise StartError(f"REDIS_URL: version {number} is too old, 6.2 or newer is needed")
    return f"REDIS_URL answers (version {number})"
