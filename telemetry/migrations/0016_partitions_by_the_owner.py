from django.db import migrations

from telemetry.storage.sql import partition_keeping


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0015_budgets_that_refuse")]

    operations = [migrations.RunSQL(partition_keeping.CREATE, partition_keeping.DROP)]
