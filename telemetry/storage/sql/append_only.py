"""Rows that are never changed, but added to: what was measured, settled or agreed. The database refuses an UPDATE."""

TABLES = ("carbonpoint", "statementline", "settlement", "tariff", "gpurate", "embodiedfactor", "pue", "instrument")

# What an entry says stays; that its pool is gone may be written into it.
CREATE = """
CREATE FUNCTION telemetry_refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: add a revision instead of changing a row', TG_TABLE_NAME;
END $$;
CREATE TRIGGER telemetry_energyentry_append_only
    BEFORE UPDATE OF energy_uj, gpu_us, carbon_gco2e, kind, start_at, end_at, gpu_id ON telemetry_energyentry
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
""" + "".join(
    f"""
CREATE TRIGGER telemetry_{table}_append_only BEFORE UPDATE ON telemetry_{table}
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
"""
    for table in TABLES
)

DROP = (
    "".join(f"DROP TRIGGER telemetry_{table}_append_only ON telemetry_{table};\n" for table in ("energyentry", *TABLES))
    + "DROP FUNCTION telemetry_refuse_update();"
)
