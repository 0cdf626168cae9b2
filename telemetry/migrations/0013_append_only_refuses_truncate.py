from django.db import migrations

from telemetry.storage.sql import append_only

TABLES = ("energyentry", *append_only.TABLES, "instrumenthour", "hostentry")


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0012_entries_by_passing")]

    operations = [
        migrations.RunSQL(append_only.refuse_truncate(table), append_only.allow_truncate(table)) for table in TABLES
    ]
