"""The audit trail is append-only: the database itself refuses to change or delete an entry."""

CREATE = """
CREATE FUNCTION pools_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: entries are neither changed nor deleted', TG_TABLE_NAME;
END $$;
CREATE TRIGGER pools_auditentry_append_only BEFORE UPDATE OR DELETE ON pools_auditentry
    FOR EACH ROW EXECUTE FUNCTION pools_refuse_change();
"""

DROP = """
DROP TRIGGER pools_auditentry_append_only ON pools_auditentry;
DROP FUNCTION pools_refuse_change();
"""

# A trigger of rows does not see this one.
REFUSE_TRUNCATE = """
CREATE TRIGGER pools_auditentry_no_truncate BEFORE TRUNCATE ON pools_auditentry
    FOR EACH STATEMENT EXECUTE FUNCTION pools_refuse_change();
"""
ALLOW_TRUNCATE = "DROP TRIGGER pools_auditentry_no_truncate ON pools_auditentry;"
