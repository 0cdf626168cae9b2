"""Sums of the ledger's entries, where all of them are made again."""

# The sums of entries over a step, made again: what postings add to, one by one.
ROLL_UP_ENTRIES = """
INSERT INTO telemetry_energyrollup
    (step_s, start_at, site_id, pool_id, kind, energy_uj, gpu_us, carbon_gco2e, unknown_uj, until)
SELECT {step_s}, to_timestamp(floor(extract(epoch FROM start_at) / {step_s}) * {step_s}), site_id, pool_id, kind,
       sum(energy_uj), sum(gpu_us), coalesce(sum(carbon_gco2e), 0.0),
       coalesce(sum(energy_uj) FILTER (WHERE carbon_gco2e IS NULL), 0), max(end_at)
FROM telemetry_energyentry GROUP BY 1, 2, 3, 4, 5
"""
