"""Sums of settled lines by the hour, kept by the database itself, in the transaction that settles."""

from __future__ import annotations

from collections.abc import Sequence

FIRST_AMOUNTS = (  # of the first release
    *("energy_uj", "prefill_uj", "facility_uj", "gpu_us", "carbon_ug", "carbon_unknown_uj", "cost_nano"),
    *("cost_unknown_uj", "rental_nano", "rental_unknown_us", "embodied_ug", "embodied_unknown_us", "requests"),
    *("prompt_tokens", "output_tokens"),
)
AMOUNTS = (*FIRST_AMOUNTS, "host_uj", "host_known_uj")
FIRST_KEYS = ("start_at", "site_id", "pool_id", "kind", "service", "tenant_id", "currency")
KEYS = (*FIRST_KEYS, "adapter")


def create(amounts: Sequence[str], keys: Sequence[str] = FIRST_KEYS) -> str:
    """Returns SQL that keeps the sums of these amounts, by these keys."""
    columns = ", ".join((*keys, "lines", *amounts))
    own = "".join(f", m.{name}" for name in keys[len(FIRST_KEYS) :])
    # A reversal is in the currency of what it takes back: the revision before has it.
    sums = f"""
SELECT date_trunc('hour', s.start_at, 'UTC') AS start_at, s.site_id, m.pool_id, m.kind, m.service, m.tenant_id,
       CASE m.entry WHEN 'reversal' THEN b.currency ELSE s.currency END AS currency{own},
       sum(CASE m.entry WHEN 'reversal' THEN -1 ELSE 1 END) AS lines,
       {", ".join(f"sum(m.{name}) AS {name}" for name in amounts)}
FROM added m JOIN telemetry_settlement s ON s.id = m.settlement_id
LEFT JOIN telemetry_settlement b ON m.entry = 'reversal' AND b.site_id = s.site_id AND b.start_at = s.start_at
     AND b.revision = s.revision - 1
GROUP BY {", ".join(str(n + 1) for n in range(len(keys)))}
"""
    return f"""
CREATE FUNCTION telemetry_add_statement_hours() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO telemetry_statementhour AS t ({columns})
    SELECT {columns} FROM ({sums}) AS sums
    ON CONFLICT ({", ".join(keys)}) DO UPDATE SET lines = t.lines + excluded.lines,
        {", ".join(f"{name} = t.{name} + excluded.{name}" for name in amounts)};
    RETURN NULL;
END $$;
CREATE TRIGGER telemetry_statementline_added AFTER INSERT ON telemetry_statementline
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION telemetry_add_statement_hours();
ALTER TABLE telemetry_statementhour SET (fillfactor = 60);
"""  # room in a page for an hour's sums to change in it


CREATE = create(FIRST_AMOUNTS)
DROP = """
DROP TRIGGER telemetry_statementline_added ON telemetry_statementline;
DROP FUNCTION telemetry_add_statement_hours();
"""
