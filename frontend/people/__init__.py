"""Sign-in, people, keys and the audit trail."""
