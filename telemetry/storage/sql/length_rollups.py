"""Answers by service, class and length, summed up by when they ended and kept by the database, as request_rollups.

Jain's index within a class is over quartiles of length: what is kept is how many answers were how long.
"""

from telemetry.models.rollups import STEPS_S

from .request_rollups import ENDED

# Lengths that differ by less than a twentieth count as one, short ones each by itself: else a sum over a minute would
# have nearly as many rows as the minute has requests.
LENGTH = "floor(20 * ln(output_tokens))::int"
ANSWERED = "timely_tokens IS NOT NULL AND output_tokens > 0 AND request_class IS NOT NULL"

_MINUTE = f"date_bin('{STEPS_S[0]} seconds', {ENDED}, TIMESTAMPTZ '1970-01-01 00:00+00')"
_COLUMNS = "step_s, start_at, service, request_class, length, requests, timely_tokens"
_SUMS = f"""
SELECT step_s, date_bin(step_s * interval '1 second', minute, TIMESTAMPTZ '1970-01-01 00:00+00') AS start_at,
       service, request_class, length, sum(requests)::int AS requests, sum(timely_tokens)::bigint AS timely_tokens
FROM (
    SELECT {_MINUTE} AS minute, service, request_class, {LENGTH} AS length, count(*) AS requests,
           sum(timely_tokens) AS timely_tokens
    FROM {{records}} WHERE {ANSWERED} GROUP BY 1, 2, 3, 4
) AS minutes CROSS JOIN (VALUES {", ".join(f"({step_s})" for step_s in STEPS_S)}) AS steps (step_s)
GROUP BY 1, 2, 3, 4, 5
"""

CREATE = f"""
CREATE FUNCTION telemetry_add_lengths() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE sign integer := TG_ARGV[0]::integer;
BEGIN
    INSERT INTO telemetry_lengthrollup AS t ({_COLUMNS})
    SELECT step_s, start_at, service, request_class, length, requests * sign, timely_tokens * sign
    FROM ({_SUMS.format(records="moved")}) AS sums ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (step_s, start_at, service, request_class, length) DO UPDATE
    SET requests = t.requests + excluded.requests, timely_tokens = t.timely_tokens + excluded.timely_tokens;
    RETURN NULL;
END $$;
CREATE TRIGGER telemetry_requestrecord_lengths_added AFTER INSERT ON telemetry_requestrecord
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION telemetry_add_lengths('1');
CREATE TRIGGER telemetry_requestrecord_lengths_taken AFTER DELETE ON telemetry_requestrecord
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION telemetry_add_lengths('-1');
ALTER TABLE telemetry_lengthrollup SET (fillfactor = 60);
"""

DROP = """
DROP TRIGGER telemetry_requestrecord_lengths_added ON telemetry_requestrecord;
DROP TRIGGER telemetry_requestrecord_lengths_taken ON telemetry_requestrecord;
DROP FUNCTION telemetry_add_lengths();
"""

FILL = f"INSERT INTO telemetry_lengthrollup ({_COLUMNS}) {_SUMS.format(records='telemetry_requestrecord')}"
