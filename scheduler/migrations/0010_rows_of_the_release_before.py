"""Lets processes of 0.1.0 insert rows while an upgrade is under way: columns that they do not know have defaults."""

from django.db import migrations

DEFAULTS = {
    ("scheduler_epoch", "advisory"): "false",
    ("scheduler_servicemode", "gateways_only"): "false",
    ("scheduler_study", "target"): "0.99",
}


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0009_trials_within_bounds")]

    operations = [
        migrations.RunSQL(
            f"ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT {value}",
            f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT",
        )
        for (table, column), value in DEFAULTS.items()
    ]
