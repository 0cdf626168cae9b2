from django.db import migrations

from telemetry.storage.sql import partition_keeping


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0013_append_only_refuses_truncate")]

    operations = [migrations.RunSQL(partition_keeping.CREATE, partition_keeping.DROP)]
