"""The two database roles: the owner, who migrates, and the product's, under which all processes work.

The product's reads, adds, changes and deletes rows. It creates, alters, drops and empties nothing, and so cannot
disable a trigger. Of what append-only tables refuse by triggers it has no right either. Both roles may be one.
"""

from __future__ import annotations

from collections import defaultdict

from django.db import connection, transaction

from telemetry.storage.sql import partition_keeping

READ_ONLY = {"django_migrations"}
# On append-only tables beside reading and adding: old forecasts are forgotten, and an entry's pool may be gone.
ALL_THE_SAME = {"telemetry_carbonpoint": ", DELETE", "telemetry_energyentry": ", UPDATE (pool_id)"}
TABLES_SQL = """
SELECT c.oid::regclass::text, coalesce(h.inhparent, c.oid)::regclass::text
FROM pg_class c LEFT JOIN pg_inherits h ON h.inhrelid = c.oid
WHERE c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace AND c.relowner = current_user::regrole
"""
APPEND_ONLY_SQL = "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname LIKE '%\\_append\\_only'"
BEYOND_SQL = """
SELECT count(*) FILTER (WHERE pg_has_role(current_user, c.relowner, 'MEMBER')),
    has_schema_privilege(current_schema(), 'CREATE'), has_database_privilege(current_database(), 'TEMPORARY')
FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace
"""


def grant(role: str) -> None:
    """Gives `role` its rights on all tables that the connection's role owns, and takes what others it had there.

    Nothing where they are the same role, or `role` acts for the owner anyway.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_has_role(%s, current_user, 'MEMBER'), quote_ident(%s)", [role, role])
        owns, name = cursor.fetchone()
        if owns:
            return
        cursor.execute(APPEND_ONLY_SQL)
        append_only = {table for (table,) in cursor.fetchall()}
        cursor.execute(TABLES_SQL)
        tables_of: dict[str, list[str]] = defaultdict(list)  # by rights
        for table, whole in cursor.fetchall():
            tables_of[_rights(whole, append_only)].append(table)
        cursor.execute("SELECT quote_ident(current_schema()), quote_ident(current_database())")
        schema, database = cursor.fetchone()
        cursor.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        for rights, tables in tables_of.items():
            cursor.execute(f"REVOKE ALL ON {', '.join(tables)} FROM {name}")
            cursor.execute(f"GRANT {rights} ON {', '.join(tables)} TO {name}")
        cursor.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {name}")
        cursor.execute(f"GRANT EXECUTE ON FUNCTION {', '.join(partition_keeping.FUNCTIONS)} TO {name}")
        cursor.execute("SELECT pg_has_role(datdba, 'MEMBER') FROM pg_database WHERE datname = current_database()")
        if cursor.fetchone()[0]:
            cursor.execute(f"REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC")


def _rights(table: str, append_only: set[str]) -> str:
    if table in READ_ONLY:
        return "SELECT"
    return "SELECT, INSERT" + (ALL_THE_SAME.get(table, "") if table in append_only else ", UPDATE, DELETE")


def beyond() -> list[str]:
    """Returns what the connection's role may do and does not need, in words; empty: nothing."""
    with connection.cursor() as cursor:
        cursor.execute(BEYOND_SQL)
        owned, creates, temporary = cursor.fetchone()
    found = [
        (owned, "owns the tables, so that it can empty the audit trail and switch its protection off"),
        (creates, "may create tables and functions"),
        (temporary, "may create temporary tables"),
    ]
    return [words for is_so, words in found if is_so]
