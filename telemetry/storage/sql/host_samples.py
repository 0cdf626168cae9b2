"""Samples of hosts: a table partitioned by UTC days, as those of `partitioned_tables`."""

CREATE = """
CREATE TABLE telemetry_hostsample (
    at timestamptz NOT NULL,
    node_id bigint NOT NULL,
    domain varchar(40) NOT NULL,
    method varchar(14) NOT NULL,
    energy_j double precision,
    power_w double precision
) PARTITION BY RANGE (at);
CREATE INDEX telemetry_hostsample_at ON telemetry_hostsample
    USING brin (at) WITH (pages_per_range = 32, autosummarize = on);
"""

DROP = "DROP TABLE telemetry_hostsample"
