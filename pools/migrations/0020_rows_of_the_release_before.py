"""Lets processes of 0.1.0 insert rows while an upgrade is under way: columns that they do not know have defaults."""

from django.db import migrations

DEFAULTS = {
    ("pools_instance", "start_kind"): "''",
    ("pools_modelcard", "shape"): "''",
    ("pools_service", "acting_knobs"): "'{}'",
    ("pools_service", "acting_policy"): "''",
    ("pools_site", "colour"): "0",
    ("pools_site", "market"): "''",
    ("pools_tenant", "shares_prefixes"): "false",
}


class Migration(migrations.Migration):
    dependencies = [("pools", "0019_tenants_that_share_prefixes")]

    operations = [
        migrations.RunSQL(
            f"ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT {value}",
            f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT",
        )
        for (table, column), value in DEFAULTS.items()
    ]
