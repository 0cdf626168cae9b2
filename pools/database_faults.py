"""Says in words, with the remedy, why PostgreSQL refuses. Pure: errors are known by their SQLSTATE."""

from __future__ import annotations

WORDS = {
    "53100": "PostgreSQL's disk is full: make room on it, and it goes on by itself",
    "53200": "PostgreSQL has no memory left: give its machine more, or fewer other programs",
    "53300": "PostgreSQL has no connection left: raise max_connections, or end other programs that are connected",
    "42501": "the database role of DATABASE_URL has no right to do this; the owner has (docs/settings.md)",
    "25006": "PostgreSQL takes no writes: it is read-only; see whether it is a standby, or end its read-only mode",
    "57014": "PostgreSQL gave up on a statement: it took longer than statement_timeout allows",
    "57P03": "PostgreSQL starts or recovers: wait until it is up",
}


def words_of(error: BaseException) -> str | None:
    """Returns what is wrong with the database; None: another error, or one that has no words here."""
    seen: BaseException | None = error
    while seen is not None:
        if state := getattr(seen, "sqlstate", None):
            return WORDS.get(state)
        seen = seen.__cause__
    return None
