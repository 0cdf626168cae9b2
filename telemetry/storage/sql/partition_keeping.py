"""The database keeps partitions by functions of the tables' owner, while the product runs.

Only the owner of a table may add, drop and sum up its partitions. The product works under a role that owns none. These
functions run with the owner's rights, each for the tables that it names and for nothing else.
"""

SAMPLES = ("telemetry_gpusample", "telemetry_instancesample", "telemetry_hostsample")
DROPPED = (*SAMPLES, "telemetry_gpuminute", "telemetry_engineminute")  # the others' days are kept for reports
MADE = (*DROPPED, "telemetry_requestrecord", "telemetry_requestshare")
FUNCTIONS = (
    "telemetry_make_partition(text, date)",
    "telemetry_drop_partition(text, date)",
    "telemetry_sum_up_brin(regclass, bigint, bigint, integer)",
)


def _array(tables: tuple[str, ...]) -> str:
    return "ARRAY['" + "', '".join(tables) + "']"


CREATE = (
    f"""
CREATE FUNCTION telemetry_make_partition(of_table text, day date) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    name text := of_table || to_char(day, '_YYYYMMDD');
    held record;
BEGIN
    IF of_table <> ALL ({_array(MADE)}) THEN
        RAISE EXCEPTION '% has no partitions of days', of_table USING ERRCODE = 'insufficient_privilege';
    END IF;
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
                   name, of_table,
                   to_char(day, 'YYYY-MM-DD 00:00+00'), to_char(day + 1, 'YYYY-MM-DD 00:00+00'));
    -- Rows are also written straight into a partition, which takes rights of its own: those on its table.
    FOR held IN
        SELECT r.grantee::regrole AS role, string_agg(r.privilege_type, ', ') AS rights
        FROM pg_class c, aclexplode(c.relacl) r
        WHERE c.oid = of_table::regclass AND r.grantee NOT IN (c.relowner, 0) GROUP BY r.grantee
    LOOP
        EXECUTE format('GRANT %s ON %I TO %s', held.rights, name, held.role);
    END LOOP;
END $$;

CREATE FUNCTION telemetry_drop_partition(of_table text, day date) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF of_table <> ALL ({_array(DROPPED)}) THEN
        RAISE EXCEPTION 'partitions of % are kept', of_table USING ERRCODE = 'insufficient_privilege';
    END IF;
    EXECUTE format('DROP TABLE %I', of_table || to_char(day, '_YYYYMMDD'));
END $$;

CREATE FUNCTION telemetry_sum_up_brin(brin regclass, first_page bigint, end_page bigint, step integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_index i JOIN pg_inherits h ON h.inhrelid = i.indrelid
        WHERE i.indexrelid = brin AND h.inhparent = ANY ({_array(SAMPLES)}::regclass[])
    ) THEN
        RAISE EXCEPTION '% is no index of samples', brin USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN (SELECT count(brin_summarize_range(brin, page)) FROM generate_series(first_page, end_page - 1, step) page);
END $$;
"""
    # Names mean what they mean to the owner, whatever the caller's search_path says; and nobody calls them unasked.
    + "DO $$ BEGIN\n"
    + "".join(
        f"    EXECUTE format('ALTER FUNCTION {function} SET search_path = %I, pg_temp', current_schema());\n"
        f"    REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC;\n"
        for function in FUNCTIONS
    )
    + "END $$;\n"
)

DROP = "".join(f"DROP FUNCTION {function};\n" for function in FUNCTIONS)
