"""Do the servers that the environment names answer, and are they patched? Each says what it found, or why not.

For each branch that gets corrections, the first version without the flaws, known in November 2026, that let any client
run programs on the server. Later branches never had them, and older ones get no corrections. By the records of the CVE
programme and the release notes of each server:

- PostgreSQL: CVE-2026-16239 and CVE-2026-14680, of August 2026. CVE-2026-6460, of November 2026 (14.25, 15.20, 16.16,
  17.12, 18.7), needs a role that may create something, which the one that GreenServe works under is not.
- Redis: CVE-2026-81934, of August 2026.
- Valkey: CVE-2026-56684 and CVE-2026-63639, of July 2026; of 9.1 also GHSA-fq2f-crmw-q97r, of August 2026.
"""

from __future__ import annotations

from collections.abc import Collection

from greenserve.process import StartError
from pools import redis_address, redis_safety
from pools.masking import masked

POSTGRES_PATCHED = ((14, 24), (15, 19), (16, 15), (17, 11), (18, 6))
REDIS_PATCHED = ((6, 2, 24), (7, 2, 16), (7, 4, 11), (8, 2, 9), (8, 4, 6), (8, 6, 6), (8, 8, 2), (8, 10, 1))
VALKEY_PATCHED = ((7, 2, 14), (8, 0, 10), (8, 1, 9), (9, 0, 5), (9, 1, 2))
TIMEOUT_S = 5
PATCHED_VARIABLE = "GREENSERVE_PATCHED_SERVERS"
Version = tuple[int, ...]


def postgres(url: str, variable: str = "DATABASE_URL", vouched: Collection[str] = ()) -> str:
    """Says which PostgreSQL answers. `vouched`: as `redis`. Raises StartError."""
    number, _ = _ask_postgres(url, TIMEOUT_S, variable)
    return _answers(variable, "PostgreSQL", (number // 10000, number % 10000), POSTGRES_PATCHED, vouched)


def role_of(url: str, timeout_s: int = TIMEOUT_S) -> str:
    """Returns the role that PostgreSQL knows the address by. Raises StartError."""
    return _ask_postgres(url, timeout_s, "DATABASE_URL")[1]


def _ask_postgres(url: str, timeout_s: int, variable: str) -> tuple[int, str]:
    """Returns the server's version, as a number, and the role. Raises StartError."""
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=timeout_s) as connection:
            return connection.info.server_version, connection.info.user
    except psycopg.Error as error:
        raise StartError(masked(f"{variable}: {str(error).splitlines()[0]}", url)) from None


def redis(url: str, insecure: bool = False, vouched: Collection[str] = ()) -> str:
    """Says which Redis or Valkey answers. Raises StartError.

    Args:
        insecure: See `redis_safety`.
        vouched: Versions, as `redis-7.0.15`, that the operator says are patched: distributions put corrections into a
            version and keep its number.
    """
    import redis as client

    if fault := redis_safety.fault(url, insecure):
        raise StartError(f"REDIS_URL: {fault}")

    try:
        with redis_address.connect(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S) as connection:
            info = connection.info("server")
    except client.RedisError as error:
        raise StartError(masked(f"REDIS_URL: {error}", url)) from None
    if valkey := info.get("valkey_version"):  # which calls itself Redis 7.2.4, too
        return _answers("REDIS_URL", "Valkey", version(str(valkey)), VALKEY_PATCHED, vouched)
    return _answers("REDIS_URL", "Redis", version(str(info["redis_version"])), REDIS_PATCHED, vouched)


def version(words: str) -> Version:
    return tuple(int(part) for part in words.split("."))


def is_patched(found: Version, patched: tuple[Version, ...]) -> bool:
    """Says whether the version is at least the patched one of its branch, or of a later branch than all of these."""
    least = next((least for least in patched if least[:-1] == found[: len(least) - 1]), None)
    return found > patched[-1] if least is None else found >= least


def _answers(variable: str, name: str, found: Version, patched: tuple[Version, ...], vouched: Collection[str]) -> str:
    words = ".".join(map(str, found))
    if not is_patched(found, patched):
        known_as = f"{name.lower()}-{words}"
        if known_as in vouched:
            return f"{variable} answers ({name} {words}, patched by its distribution, as {PATCHED_VARIABLE} says)"
        needed = ", ".join(".".join(map(str, least)) for least in patched)
        raise StartError(
            f"{variable}: {name} {words} has known security flaws: {needed}, or a later version of one of these "
            "branches or of a later branch, is needed. Where your distribution has put the corrections into this one "
            f"(see the package's changelog), set {PATCHED_VARIABLE}={known_as}"
        )
    return f"{variable} answers ({name} {words})"
