"""Requests by when they came and how long they are, summed up for each 5 s and kept by the database itself, as
request_rollups.

Lengths count as the same between two borders. All borders of request classes are among these, so that a class of any
partition is made of whole sketches. DynamoLLM's are always: they come into use with a preset.
"""

from core.observations.demand.class_arrivals import STRETCH_S
from telemetry.models.demand import KEPT_S

from .request_rollups import ENDED

OUTPUT_UNKNOWN_TOKENS = 129  # median of the Azure conversation trace (AzurePublicDataset, CC-BY)
PROMPT_BORDERS, OUTPUT_BORDERS = (256, 1_024), (100, 350)  # its table IV
OPEN_END = 2**31 - 1

_KEY = "service, start_at, request_class, prompt_from, output_from"
_SUMMED = ("requests", "prompt_tokens", "output_tokens", "context_tokens", "ended")
_COLUMNS = f"{_KEY}, prompt_to, output_to, {', '.join(_SUMMED)}"


def _stretch(moment: str) -> str:
    return f"date_bin('{STRETCH_S:g} seconds', {moment}, TIMESTAMPTZ '1970-01-01 00:00+00')"


def _borders(side: str, borders: tuple[int, ...]) -> str:
    """Returns the SQL of an ascending array, from 0 on."""
    own = ", ".join(map(str, (0, *borders)))
    return (
        f"SELECT array_agg(DISTINCT length ORDER BY length) FROM (SELECT unnest(ARRAY[{own}]) AS length "
        f"UNION ALL SELECT {side}_min FROM pools_requestclass UNION ALL SELECT {side}_max FROM pools_requestclass) "
        "AS borders WHERE length IS NOT NULL"
    )


PROMPTS, OUTPUTS = _borders("input", PROMPT_BORDERS), _borders("output", OUTPUT_BORDERS)
# An answer that was cut short says nothing of its true length: there the prediction counts. An embedding's is 0.
_SUMS = f"""
SELECT {_KEY}, max(prompt_to) AS prompt_to, max(output_to) AS output_to, sum(came)::int AS requests,
       coalesce(sum(came * prompt), 0)::bigint AS prompt_tokens, sum(came * output)::bigint AS output_tokens,
       coalesce(sum(came * output * (prompt + output / 2)), 0) AS context_tokens, sum(ended)::int AS ended
FROM (
    SELECT service, request_class, prompt, output, start_at, came, ended,
           coalesce(prompts[prompt_bin], -1) AS prompt_from, coalesce(prompts[prompt_bin + 1], {OPEN_END}) AS prompt_to,
           outputs[output_bin] AS output_from, coalesce(outputs[output_bin + 1], {OPEN_END}) AS output_to
    FROM (
        SELECT service, coalesce(request_class, '') AS request_class, prompt_tokens::float8 AS prompt,
               output::float8 AS output, started_at, {ENDED} AS ended_at, prompts, outputs,
               width_bucket(prompt_tokens, prompts) AS prompt_bin,
               width_bucket(greatest(0, coalesce(predicted_output_tokens, output)), outputs) AS output_bin
        FROM (
            SELECT *, coalesce(CASE WHEN status = 'ok' THEN output_tokens END, predicted_output_tokens, output_tokens,
                               {OUTPUT_UNKNOWN_TOKENS}) AS output
            FROM {{records}} WHERE status <> 'client_error'
        ) AS known
        CROSS JOIN (SELECT ({PROMPTS}) AS prompts,
                           ({OUTPUTS}) AS outputs) AS borders
    ) AS rows
    CROSS JOIN LATERAL (VALUES ({_stretch("started_at")}, 1, 0), ({_stretch("ended_at")}, 0, 1))
        AS stretches (start_at, came, ended)
) AS parts
GROUP BY {_KEY}
"""

CREATE = f"""
CREATE FUNCTION telemetry_sketch_demand() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE sign integer := TG_ARGV[0]::integer;
BEGIN
    INSERT INTO telemetry_demandsketch AS t ({_COLUMNS})
    SELECT {_KEY}, prompt_to, output_to, {", ".join(f"{column} * sign" for column in _SUMMED)}
    FROM ({_SUMS.format(records="moved")}) AS sums ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT ({_KEY}) DO UPDATE
    SET prompt_to = greatest(t.prompt_to, excluded.prompt_to), output_to = greatest(t.output_to, excluded.output_to),
        {", ".join(f"{column} = t.{column} + excluded.{column}" for column in _SUMMED)};
    RETURN NULL;
END $$;
CREATE TRIGGER telemetry_requestrecord_demand_added AFTER INSERT ON telemetry_requestrecord
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION telemetry_sketch_demand('1');
CREATE TRIGGER telemetry_requestrecord_demand_taken AFTER DELETE ON telemetry_requestrecord
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION telemetry_sketch_demand('-1');
ALTER TABLE telemetry_demandsketch SET (fillfactor = 60);
"""

DROP = """
DROP TRIGGER telemetry_requestrecord_demand_added ON telemetry_requestrecord;
DROP TRIGGER telemetry_requestrecord_demand_taken ON telemetry_requestrecord;
DROP FUNCTION telemetry_sketch_demand();
"""

# What the trigger would have kept up.
_RECENT = f"""(
    SELECT * FROM telemetry_requestrecord WHERE started_at >= (
        SELECT max(started_at) - interval '{KEPT_S} seconds' FROM telemetry_requestrecord
    )
) AS recent"""
FILL = f"""
INSERT INTO telemetry_demandsketch ({_COLUMNS}) SELECT {_COLUMNS} FROM ({_SUMS.format(records=_RECENT)}) AS sums
"""
