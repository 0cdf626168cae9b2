"""Rows that are never changed: carbon points and energy entries. The database itself refuses an UPDATE."""

CREATE = """
CREATE FUNCTION telemetry_refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: add a revision instead of changing a row', TG_TABLE_NAME;
END $$;
CREATE TRIGGER telemetry_carbonpoint_append_only BEFORE UPDATE ON telemetry_carbonpoint
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
CREATE TRIGGER telemetry_energyentry_append_only BEFORE UPDATE OF energy_j, carbon_gco2e, kind, start_at, end_at, gpu_id
    ON telemetry_energyentry FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
"""

DROP = """
DROP TRIGGER telemetry_carbonpoint_append_only ON telemetry_carbonpoint;
DROP TRIGGER telemetry_energyentry_append_only ON telemetry_energyentry;
DROP FUNCTION telemetry_refuse_update();
"""
