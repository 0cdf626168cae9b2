from django.db import migrations, models

from telemetry.storage.sql import length_rollups


class Migration(migrations.Migration):
    """Sums by length are made again from the records: those that are there do not say whose class they were of."""

    dependencies = [
        ("telemetry", "0003_demand_sketches"),
    ]

    operations = [
        migrations.RunSQL(length_rollups.DROP),
        migrations.RunSQL("TRUNCATE telemetry_lengthrollup", migrations.RunSQL.noop),
        migrations.RemoveConstraint(model_name="lengthrollup", name="length_rollup_once"),
        migrations.AddField(
            model_name="lengthrollup",
            name="service",
            field=models.CharField(default="", max_length=100),
            preserve_default=False,
        ),
        migrations.AddConstraint(
            model_name="lengthrollup",
            constraint=models.UniqueConstraint(
                fields=("step_s", "start_at", "service", "request_class", "length"), name="length_rollup_once"
            ),
        ),
        migrations.RunSQL(length_rollups.FILL, migrations.RunSQL.noop),
        migrations.RunSQL(length_rollups.CREATE, length_rollups.DROP),
    ]
