"""Sums of energy entries by GPU, kept by the database itself: whoever enters (or takes away) entries, they follow."""

STEPS_S = (3_600, 86_400)

_SUMS = f"""
SELECT gpu_id, site_id, step_s, to_timestamp(floor(extract(epoch FROM start_at) / step_s) * step_s) AS start_at,
       sum(energy_uj)::bigint AS energy_uj
FROM {{entries}} CROSS JOIN (VALUES {", ".join(f"({step_s})" for step_s in STEPS_S)}) AS steps (step_s)
GROUP BY 1, 2, 3, 4
"""

# A statement's entries are added up once, in one order, so that two postings cannot deadlock.
CREATE = f"""
CREATE FUNCTION telemetry_add_gpu_energy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO telemetry_gpuenergy AS t (gpu_id, site_id, step_s, start_at, energy_uj)
    SELECT gpu_id, site_id, step_s, start_at, energy_uj * TG_ARGV[0]::int
    FROM ({_SUMS.format(entries="moved")}) AS sums ORDER BY 1, 2, 3, 4
    ON CONFLICT (step_s, site_id, start_at, gpu_id) DO UPDATE SET energy_uj = t.energy_uj + excluded.energy_uj;
    RETURN NULL;
END $$;
CREATE TRIGGER telemetry_energyentry_added AFTER INSERT ON telemetry_energyentry
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION telemetry_add_gpu_energy('1');
CREATE TRIGGER telemetry_energyentry_taken AFTER DELETE ON telemetry_energyentry
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION telemetry_add_gpu_energy('-1');
ALTER TABLE telemetry_gpuenergy SET (fillfactor = 60);
"""  # the hour's sum changes with each posting: room in its page keeps the index as it is

DROP = """
DROP TRIGGER telemetry_energyentry_added ON telemetry_energyentry;
DROP TRIGGER telemetry_energyentry_taken ON telemetry_energyentry;
DROP FUNCTION telemetry_add_gpu_energy();
"""

FILL = f"""
INSERT INTO telemetry_gpuenergy (gpu_id, site_id, step_s, start_at, energy_uj)
{_SUMS.format(entries="telemetry_energyentry")}
"""
