import django.db.models.deletion
from django.db import migrations, models

from telemetry.sql import gpu_energy


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0003_tokenizers"),
        ("telemetry", "0006_feeds_and_forecasts"),
    ]

    operations = [
        migrations.CreateModel(
            name="GpuEnergy",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "step_s",
                        "site_id",
                        "start_at",
                        "gpu_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("step_s", models.IntegerField()),
                ("start_at", models.DateTimeField()),
                ("energy_uj", models.BigIntegerField()),
                (
                    "gpu",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pools.gpu",
                    ),
                ),
                (
                    "site",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pools.site",
                    ),
                ),
            ],
            options={"db_table": "telemetry_gpuenergy"},
        ),
        # The triggers lock the entries until the end: none comes between them and the sums of those that are there.
        migrations.RunSQL(gpu_energy.CREATE, gpu_energy.DROP),
        migrations.RunSQL(gpu_energy.FILL, migrations.RunSQL.noop),
        migrations.RunSQL(gpu_energy.INSTRUMENT_APPEND_ONLY, gpu_energy.INSTRUMENT_NOT_APPEND_ONLY),
    ]
