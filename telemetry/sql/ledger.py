"""What Django cannot write of the ledger's tables: whole microjoules in the place of floats, partitions, triggers."""

TO_MICROJOULES = """
DROP TRIGGER telemetry_energyentry_append_only ON telemetry_energyentry;
UPDATE telemetry_energyentry SET energy_uj = round(energy_j * 1e6),
    gpu_us = extract(epoch FROM end_at - start_at) * 1000000;
UPDATE telemetry_metermark SET energy_uj = round(energy_j * 1e6);
UPDATE telemetry_metermark m SET opened_energy_uj = m.energy_uj
    - coalesce((SELECT sum(e.energy_uj) FROM telemetry_energyentry e WHERE e.gpu_id = m.gpu_id), 0);
SET CONSTRAINTS ALL IMMEDIATE;
"""  # each entry was rounded by itself, so what they add up to is where the meter now counts from

APPEND_ONLY = """
CREATE TRIGGER telemetry_energyentry_append_only
    BEFORE UPDATE OF energy_uj, gpu_us, carbon_gco2e, kind, start_at, end_at, gpu_id ON telemetry_energyentry
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
CREATE TRIGGER telemetry_statementline_append_only BEFORE UPDATE ON telemetry_statementline
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
CREATE TRIGGER telemetry_settlement_append_only BEFORE UPDATE ON telemetry_settlement
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
CREATE TRIGGER telemetry_tariff_append_only BEFORE UPDATE ON telemetry_tariff
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
CREATE TRIGGER telemetry_gpurate_append_only BEFORE UPDATE ON telemetry_gpurate
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
CREATE TRIGGER telemetry_embodiedfactor_append_only BEFORE UPDATE ON telemetry_embodiedfactor
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
CREATE TRIGGER telemetry_pue_append_only BEFORE UPDATE ON telemetry_pue
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_update();
"""

NOT_APPEND_ONLY = """
DROP TRIGGER telemetry_energyentry_append_only ON telemetry_energyentry;
DROP TRIGGER telemetry_statementline_append_only ON telemetry_statementline;
DROP TRIGGER telemetry_settlement_append_only ON telemetry_settlement;
DROP TRIGGER telemetry_tariff_append_only ON telemetry_tariff;
DROP TRIGGER telemetry_gpurate_append_only ON telemetry_gpurate;
DROP TRIGGER telemetry_embodiedfactor_append_only ON telemetry_embodiedfactor;
DROP TRIGGER telemetry_pue_append_only ON telemetry_pue;
"""

# Ranges of few pages, summed up as they fill: a chart's minute is then found in some hundred kilobytes.
PARTITIONED = """
DROP INDEX telemetry_gpusample_at;
DROP INDEX telemetry_instancesample_at;
CREATE INDEX telemetry_gpusample_at ON telemetry_gpusample
    USING brin (at) WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX telemetry_instancesample_at ON telemetry_instancesample
    USING brin (at) WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX telemetry_ingestbatch_received_at ON telemetry_ingestbatch USING brin (received_at);

CREATE TABLE telemetry_gpuminute (
    gpu_id bigint NOT NULL,
    start_at timestamptz NOT NULL,
    samples integer NOT NULL,
    heard_s double precision NOT NULL,
    gaps integer NOT NULL,
    power_w double precision,
    power_max_w double precision,
    sm_clock_mhz double precision,
    utilisation double precision,
    memory_max_bytes bigint,
    temperature_max_c double precision,
    PRIMARY KEY (gpu_id, start_at)
) PARTITION BY RANGE (start_at);

CREATE INDEX telemetry_gpuminute_start_at ON telemetry_gpuminute USING brin (start_at)
    WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX telemetry_gpuhour_start_at ON telemetry_gpuhour USING brin (start_at)
    WITH (pages_per_range = 16, autosummarize = on);

CREATE TABLE telemetry_requestshare (
    start_at timestamptz NOT NULL,
    settlement_id bigint NOT NULL,
    started_at timestamptz NOT NULL,
    request_id varchar(64) NOT NULL,
    prefill_uj bigint NOT NULL,
    decode_uj bigint NOT NULL,
    gpu_us bigint NOT NULL
) PARTITION BY RANGE (start_at);
CREATE INDEX telemetry_requestshare_settlement ON telemetry_requestshare USING brin (settlement_id)
    WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX telemetry_requestshare_started_at ON telemetry_requestshare USING brin (started_at)
    WITH (pages_per_range = 16, autosummarize = on);
"""

NOT_PARTITIONED = """
DROP TABLE telemetry_requestshare, telemetry_gpuminute;
DROP INDEX telemetry_ingestbatch_received_at, telemetry_gpuhour_start_at;
"""

# The sums of entries over a step, made again: what postings add to, one by one.
ROLL_UP_ENTRIES = """
INSERT INTO telemetry_energyrollup
    (step_s, start_at, site_id, pool_id, kind, energy_uj, gpu_us, carbon_gco2e, unknown_uj, until)
SELECT {step_s}, to_timestamp(floor(extract(epoch FROM start_at) / {step_s}) * {step_s}), site_id, pool_id, kind,
       sum(energy_uj), sum(gpu_us), coalesce(sum(carbon_gco2e), 0.0),
       coalesce(sum(energy_uj) FILTER (WHERE carbon_gco2e IS NULL), 0), max(end_at)
FROM telemetry_energyentry GROUP BY 1, 2, 3, 4, 5
"""
