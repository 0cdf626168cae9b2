"""The time-partitioned tables of the first migration. Partitions are one UTC day each, made by `telemetry.partitions`.

Samples carry no key: idempotence comes from the table of batches, and BRIN serves time ranges in a few pages.
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
CREATE INDEX telemetry_gpusample_at ON telemetry_gpusample USING brin (at);

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
CREATE INDEX telemetry_instancesample_at ON telemetry_instancesample USING brin (at);

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
    attempts integer NOT NULL,
    route_reason varchar(200) NOT NULL,
    error varchar(500) NOT NULL,
    slo_met boolean,
    slo_failed varchar(40) NOT NULL,
    PRIMARY KEY (started_at, request_id),
    CHECK (prompt_tokens >= 0 AND output_tokens >= 0 AND attempts >= 0)
) PARTITION BY RANGE (started_at);
"""

DROP = "DROP TABLE telemetry_requestrecord, telemetry_instancesample, telemetry_gpusample"
