from django.db import migrations

from telemetry.storage.sql import request_rollups


class Migration(migrations.Migration):
    """Sums of requests from now on; those that are there stay as they are."""

    dependencies = [
        ("telemetry", "0019_adapters_of_requests"),
    ]

    operations = [
        migrations.RunSQL(request_rollups.ADD_UP, migrations.RunSQL.noop),
    ]
