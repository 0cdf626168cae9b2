"""Sums of the energy roll-ups by site, kept by the database itself: whoever posts, settles or restates, they follow."""

_KEY = "step_s, start_at, site_id, kind"
_SUMS = ("energy_uj", "gpu_us", "carbon_gco2e", "unknown_uj")
_COLUMNS = f"{_KEY}, {', '.join(_SUMS)}, until"
_ADDED = "SELECT 1 AS sign, r.* FROM added r"
_TAKEN = "SELECT -1, r.* FROM taken r"
_MOVED = {
    "INSERT": (_ADDED, "NEW TABLE AS added"),
    "UPDATE": (f"{_ADDED} UNION ALL {_TAKEN}", "OLD TABLE AS taken NEW TABLE AS added"),
    "DELETE": (_TAKEN.replace("-1,", "-1 AS sign,"), "OLD TABLE AS taken"),
}

# A statement's roll-ups are added up once, in one order, so that two writers cannot deadlock.
_ADD = f"""
INSERT INTO telemetry_siteenergy AS t ({_COLUMNS})
SELECT {_KEY}, {", ".join(f"sum(sign * {name})" for name in _SUMS)}, max(until)
FROM ({{moved}}) AS moved GROUP BY {_KEY} ORDER BY {_KEY}
ON CONFLICT ({_KEY}) DO UPDATE
SET {", ".join(f"{name} = t.{name} + excluded.{name}" for name in _SUMS)}, until = greatest(t.until, excluded.until)
"""

CREATE = (
    "".join(
        f"""
CREATE FUNCTION telemetry_siteenergy_{event.lower()}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    {_ADD.format(moved=moved)};
    RETURN NULL;
END $$;
CREATE TRIGGER telemetry_siteenergy_{event.lower()} AFTER {event} ON telemetry_energyrollup
    REFERENCING {tables} FOR EACH STATEMENT EXECUTE FUNCTION telemetry_siteenergy_{event.lower()}();
"""
        for event, (moved, tables) in _MOVED.items()
    )
    + "ALTER TABLE telemetry_siteenergy SET (fillfactor = 60);"
)  # the newest sums change with each posting: room in their pages keeps the index as it is

DROP = "".join(
    f"""
DROP TRIGGER telemetry_siteenergy_{event.lower()} ON telemetry_energyrollup;
DROP FUNCTION telemetry_siteenergy_{event.lower()}();
"""
    for event in _MOVED
)

FILL = f"""
INSERT INTO telemetry_siteenergy ({_COLUMNS})
SELECT {_KEY}, {", ".join(f"sum({name})" for name in _SUMS)}, max(until) FROM telemetry_energyrollup GROUP BY {_KEY}
"""
