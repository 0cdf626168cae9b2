from django.db import migrations

from telemetry.sql import request_rollups


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0012_site_and_length_rollups"),
    ]

    operations = [
        migrations.RunSQL(request_rollups.POOL_INDEX, request_rollups.NO_POOL_INDEX),
    ]
