"""The time-partitioned tables. Partitions are one UTC day each, made by `telemetry.storage.time_partitions`.

Samples carry no key: idempotence comes from the table of batches, and BRIN serves time ranges in a few pages. Its
ranges are of few pages, summed up as they fill: a chart's minute is then found in some hundred kilobytes.
"""

CREATE = """
CREATE TABLE telemetry_gpusample (
    at timestamptz NOT NULL,
    gpu_id bigint NOT NULL,
    energy_j double precision,
    power_w double precision,
    sm_clock_mhz double precision,
    utilisation double precision,
    memory_used_bytes bigint,
    temperature_c double precision,
    instance_id bigint,
    instance_state varchar(10),
    running integer
) PARTITION BY RANGE (at);
CREATE INDEX telemetry_gpusample_at ON telemetry_gpusample
    USING brin (at) WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE telemetry_instancesample (
    at timestamptz NOT NULL,
    instance_id bigint NOT NULL,
    state varchar(10) NOT NULL,
    running integer,
    waiting integer,
    kv_usage double precision,
    prompt_tokens_total double precision,
    generation_tokens_total double precision,
    ttft_s double precision,
    tpot_s double precision,
    sm_clock_mhz double precision
) PARTITION BY RANGE (at);
CREATE INDEX telemetry_instancesample_at ON telemetry_instancesample
    USING brin (at) WITH (pages_per_range = 32, autosummarize = on);

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

CREATE TABLE telemetry_engineminute (
    instance_id bigint NOT NULL,
    start_at timestamptz NOT NULL,
    samples integer NOT NULL,
    running double precision,
    waiting double precision,
    kv_usage_max double precision,
    sm_clock_mhz double precision,
    PRIMARY KEY (instance_id, start_at)
) PARTITION BY RANGE (start_at);

CREATE TABLE telemetry_requestrecord (
    started_at timestamptz NOT NULL,
    request_id varchar(64) NOT NULL,
    service varchar(100) NOT NULL,
    tenant_id bigint,
    key_id bigint,
    endpoint varchar(20) NOT NULL,
    stream boolean NOT NULL,
    status varchar(20) NOT NULL,
    http_status integer NOT NULL,
    prompt_tokens integer,
    output_tokens integer,
    tokens_source varchar(10),
    predicted_output_tokens integer,
    prediction_source varchar(10),
    max_tokens integer,
    request_class varchar(20),
    actual_class varchar(20),
    pool_id bigint,
    instance_uid uuid,
    ttft_s double precision,
    tpot_s double precision,
    itl_max_s double precision,
    e2e_s double precision,
    window_s double precision,
    timely_tokens integer,
    predicted_energy_j double precision,
    queue_s double precision,
    lost boolean NOT NULL,
    own_ttft_s double precision,
    own_tpot_s double precision,
    attempts integer NOT NULL,
    route_reason varchar(200) NOT NULL,
    error varchar(500) NOT NULL,
    traceparent varchar(55),
    slo_met boolean,
    slo_failed varchar(40) NOT NULL,
    PRIMARY KEY (started_at, request_id),
    CHECK (prompt_tokens >= 0 AND output_tokens >= 0 AND attempts >= 0)
) PARTITION BY RANGE (started_at);

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

DROP = """
DROP TABLE telemetry_requestshare, telemetry_requestrecord, telemetry_engineminute, telemetry_gpuminute,
    telemetry_instancesample, telemetry_gpusample
"""

# Hours are one table, and are found by time as the samples are.
HOURS_INDEX = """
CREATE INDEX telemetry_gpuhour_start_at ON telemetry_gpuhour USING brin (start_at)
    WITH (pages_per_range = 16, autosummarize = on)
"""
NO_HOURS_INDEX = "DROP INDEX telemetry_gpuhour_start_at"
