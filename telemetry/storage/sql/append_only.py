"""Rows that are never changed, but added to: what was measured, settled or agreed. The database refuses an UPDATE."""

# Those of the first release; one that came later is named by the migration that makes it.
TABLES = ("carbonpoint", "statementline", "settlement", "tariff", "gpurate", "embodiedfactor", "pue", "instrument")


def create(table: str) -> str:
    """Returns SQL that makes one more table append-only."""
    return f"""
CREATE TRIGGER telemetry_{table}_append_only BEFORE UPDATE ON telemetry_{table}
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
"""


def drop(table: str) -> str:
    return f"DROP TRIGGER telemetry_{table}_append_only ON telemetry_{table};\n"


def refuse_truncate(table: str) -> str:
    """Returns SQL that keeps one append-only table from being emptied at once, which a trigger of rows does not see."""
    return f"""
CREATE TRIGGER telemetry_{table}_no_truncate BEFORE TRUNCATE ON telemetry_{table}
    FOR EACH STATEMENT EXECUTE FUNCTION telemetry_refuse_update();
"""


def allow_truncate(table: str) -> str:
    return f"DROP TRIGGER telemetry_{table}_no_truncate ON telemetry_{table};\n"


# What an entry says stays; that its pool is gone may be written into it.
CREATE = """
CREATE FUNCTION telemetry_refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: add a revision instead of changing a row', TG_TABLE_NAME;
END $$;
CREATE TRIGGER telemetry_energyentry_append_only
    BEFORE UPDATE OF energy_uj, gpu_us, carbon_gco2e, kind, start_at, end_at, gpu_id ON telemetry_energyentry
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
""" + "".join(map(create, TABLES))

DROP = "".join(map(drop, ("energyentry", *TABLES))) + "DROP FUNCTION telemetry_refuse_update();"
