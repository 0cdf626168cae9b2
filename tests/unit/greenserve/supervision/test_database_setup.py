"""Databases from before 0.1.0, by the migrations that they say they have."""

from __future__ import annotations

from django.db.migrations.loader import MigrationLoader

from greenserve.supervision.database_setup import lacking

POOLS = MigrationLoader(None).disk_migrations["pools", "0001_initial"]


def test_nothing_is_lacking_when_a_database_is_new_or_had_all_that_was_squashed() -> None:
    assert lacking([]) == []
    assert lacking(POOLS.replaces) == []
    assert lacking([*POOLS.replaces[:3], ("pools", "0001_initial")]) == []


def test_the_missing_ones_are_named_when_a_database_stopped_half_way() -> None:
    assert lacking(POOLS.replaces[:-1]) == ["pools.0008_site_pue_at_most"]
