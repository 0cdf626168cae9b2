"""Sums of request records by the time they ended, kept by the database itself: whoever writes records, they follow."""

from telemetry.models.rollups import REQUEST_STEPS_S

ENDED = "started_at + coalesce(e2e_s, 0) * interval '1 second'"
_STEP_START = f"date_bin('{REQUEST_STEPS_S[0]} seconds', {ENDED}, TIMESTAMPTZ '1970-01-01 00:00+00')"
_STEPS = f"""
CROSS JOIN (VALUES {", ".join(f"({step_s})" for step_s in REQUEST_STEPS_S)}) AS steps (step_s)
"""
_START = "date_bin(step_s * interval '1 second', cell, TIMESTAMPTZ '1970-01-01 00:00+00') AS start_at"

# Which requests an objective is judged by; `k.kind` empty: all objectives together. A latency that was not measured is
# not judged. A failure misses each, but of an answer at once: those that came have no first token, and no tokens after
# it, to judge by, so that failures alone would be.
JUDGED = """
r.slo_met IS NOT NULL AND (k.value IS NOT NULL OR r.status <> 'ok' AND (r.stream OR k.kind NOT IN ('ttft', 'tpot')))
"""
_SLO = f"""
SELECT step_s, {_START}, service, kind, sum(judged)::int AS judged, sum(within)::int AS within, max(until) AS until
FROM (
    SELECT {_STEP_START} AS cell, r.service, k.kind, count(*) AS judged,
           count(*) FILTER (WHERE CASE k.kind WHEN '' THEN r.slo_met
               ELSE r.status = 'ok' AND NOT k.kind = ANY (string_to_array(r.slo_failed, ',')) END) AS within,
           max({ENDED}) AS until
    FROM {{records}} r
    CROSS JOIN LATERAL (VALUES ('', 0), ('ttft', r.ttft_s), ('tpot', r.tpot_s), ('e2e', r.e2e_s)) AS k (kind, value)
    WHERE {JUDGED}
    GROUP BY 1, 2, 3
) AS cells {_STEPS}
GROUP BY 1, 2, 3, 4
"""
_TENANT = f"""
SELECT step_s, {_START}, tenant_id, sum(timely_tokens)::bigint AS timely_tokens,
       sum(output_tokens)::bigint AS output_tokens
FROM (
    SELECT {_STEP_START} AS cell, tenant_id, sum(timely_tokens) AS timely_tokens, sum(output_tokens) AS output_tokens
    FROM {{records}}
    WHERE timely_tokens IS NOT NULL AND output_tokens > 0 AND tenant_id IS NOT NULL GROUP BY 1, 2
) AS cells {_STEPS}
GROUP BY 1, 2, 3
"""
_SLO_COLUMNS = "step_s, start_at, service, kind, judged, within, until"
_TENANT_COLUMNS = "step_s, start_at, tenant_id, timely_tokens, output_tokens"

# A statement's records are added up once, in one order, so that two writers cannot deadlock.
ADD_UP = f"""
CREATE OR REPLACE FUNCTION telemetry_add_requests() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE sign integer := TG_ARGV[0]::integer;
BEGIN
    INSERT INTO telemetry_slorollup AS t ({_SLO_COLUMNS})
    SELECT step_s, start_at, service, kind, judged * sign, within * sign, until
    FROM ({_SLO.format(records="moved")}) AS sums ORDER BY 1, 2, 3, 4
    ON CONFLICT (step_s, start_at, service, kind) DO UPDATE
    SET judged = t.judged + excluded.judged, within = t.within + excluded.within,
        until = greatest(t.until, excluded.until);
    INSERT INTO telemetry_tenantrollup AS t ({_TENANT_COLUMNS})
    SELECT step_s, start_at, tenant_id, timely_tokens * sign, output_tokens * sign
    FROM ({_TENANT.format(records="moved")}) AS sums ORDER BY 1, 2, 3
    ON CONFLICT (step_s, start_at, tenant_id) DO UPDATE
    SET timely_tokens = t.timely_tokens + excluded.timely_tokens,
        output_tokens = t.output_tokens + excluded.output_tokens;
    RETURN NULL;
END $$;
"""
CREATE = f"""
{ADD_UP}
CREATE TRIGGER telemetry_requestrecord_added AFTER INSERT ON telemetry_requestrecord
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION telemetry_add_requests('1');
CREATE TRIGGER telemetry_requestrecord_taken AFTER DELETE ON telemetry_requestrecord
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION telemetry_add_requests('-1');
ALTER TABLE telemetry_slorollup SET (fillfactor = 60);
ALTER TABLE telemetry_tenantrollup SET (fillfactor = 60);
"""  # the newest sums change with each batch: room in their pages keeps the index as it is

DROP = """
DROP TRIGGER telemetry_requestrecord_added ON telemetry_requestrecord;
DROP TRIGGER telemetry_requestrecord_taken ON telemetry_requestrecord;
DROP FUNCTION telemetry_add_requests();
"""

FILL = f"""
INSERT INTO telemetry_slorollup ({_SLO_COLUMNS}) {_SLO.format(records="telemetry_requestrecord")};
INSERT INTO telemetry_tenantrollup ({_TENANT_COLUMNS}) {_TENANT.format(records="telemetry_requestrecord")};
"""

# AT TIME ZONE 'UTC' is what makes the expression fit for an index. Not a BRIN one: how much the planner trusts that
# depends on how well its last sample was ordered, and without it a quarter of a second is spent on reading a day.
ENDED_UTC = "((started_at AT TIME ZONE 'UTC') + coalesce(e2e_s, 0) * interval '1 second')"

# The second is for the newest of some pools among all that ended in the last minutes.
INDEXES = f"""
CREATE INDEX telemetry_requestrecord_ended ON telemetry_requestrecord ({ENDED_UTC});
CREATE INDEX telemetry_requestrecord_pool_ended ON telemetry_requestrecord (pool_id, {ENDED_UTC});
"""
NO_INDEXES = "DROP INDEX telemetry_requestrecord_ended, telemetry_requestrecord_pool_ended"
