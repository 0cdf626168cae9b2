"""SQL that migrations run."""
