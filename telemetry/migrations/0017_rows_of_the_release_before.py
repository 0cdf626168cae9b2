"""Lets processes of 0.1.0 insert rows while an upgrade is under way: columns that they do not know have defaults."""

from django.db import migrations

DEFAULTS = {
    ("telemetry_alertnotice", "level"): "''",
    ("telemetry_instrument", "cancellation"): "''",
    ("telemetry_instrument", "generation"): "'even'",
    ("telemetry_instrument", "market"): "''",
    ("telemetry_instrument", "mix"): "'{}'",
    ("telemetry_instrument", "profile"): "'[]'",
    ("telemetry_lengthrollup", "service"): "''",
}


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0016_partitions_by_the_owner")]

    operations = [
        migrations.RunSQL(
            f"ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT {value}",
            f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT",
        )
        for (table, column), value in DEFAULTS.items()
    ]
