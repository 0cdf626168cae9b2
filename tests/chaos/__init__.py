"""Faults of the running demo, one after the other while a replay is under way: `make chaos` (docs/faults.md)."""
