"""Do the servers that the environment names answer, and are they patched? Each says what it found, or why not.

For each branch that gets corrections, the first version without the flaws that let a client of the server run programs
there or read what is not its own: of PostgreSQL those of November 2025 (CVE-2025-12817, CVE-2025-12818), of Redis and
Valkey those of Lua scripts (CVE-2025-49844). Later branches never had them, and older ones get no corrections.
"""

from __future__ import annotations

from greenserve.process import StartError
from pools.masking import masked

POSTGRES_PATCHED = ((14, 20), (15, 15), (16, 11), (17, 7), (18, 1))
REDIS_PATCHED = ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2))
VALKEY_PATCHED = ((7, 2, 11), (8, 0, 6), (8, 1, 4))
TIMEOUT_S = 5
Version = tuple[int, ...]


def postgres(url: str, timeout_s: int = TIMEOUT_S) -> str:
    """Raises StartError."""
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=timeout_s) as connection:
            number = connection.info.server_version
    except psycopg.Error as error:
        raise StartError(masked(f"DATABASE_URL: {str(error).splitlines()[0]}", url)) from None
    return _answers("DATABASE_URL", "PostgreSQL", (number // 10000, number % 10000), POSTGRES_PATCHED)


def redis(url: str) -> str:
    """Raises StartError."""
    import redis as client

    try:
        with client.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S) as connection:
            info = connection.info("server")
    except client.RedisError as error:
        raise StartError(masked(f"REDIS_URL: {error}", url)) from None
    if valkey := info.get("valkey_version"):  # which calls itself Redis 7.2.4, too
        return _answers("REDIS_URL", "Valkey", version(str(valkey)), VALKEY_PATCHED)
    return _answers("REDIS_URL", "Redis", version(str(info["redis_version"])), REDIS_PATCHED)


def version(words: str) -> Version:
    return tuple(int(part) for part in words.split("."))


def is_patched(found: Version, patched: tuple[Version, ...]) -> bool:
    """Says whether the version is at least the patched one of its branch, or of a later branch than all of these."""
    least = next((least for least in patched if least[:-1] == found[: len(least) - 1]), None)
    return found > patched[-1] if least is None else found >= least


def _answers(variable: str, name: str, found: Version, patched: tuple[Version, ...]) -> str:
    words = ".".join(map(str, found))
    if not is_patched(found, patched):
        needed = ", ".join(".".join(map(str, least)) for least in patched)
        raise StartError(
            f"{variable}: {name} {words} has known security flaws: {needed}, or a later version of one of these "
            "branches or of a later branch, is needed"
        )
    return f"{variable} answers ({name} {words})"
