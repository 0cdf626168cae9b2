import django.db.models.deletion
from django.db import migrations, models

from telemetry.sql import length_rollups, site_energy


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0006_engine_launch"),
        ("telemetry", "0011_request_rollups"),
    ]

    operations = [
        migrations.CreateModel(
            name="LengthRollup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("step_s", models.IntegerField()),
                ("start_at", models.DateTimeField()),
                ("request_class", models.CharField(max_length=20)),
                ("length", models.IntegerField()),
                ("requests", models.IntegerField()),
                ("timely_tokens", models.BigIntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("step_s", "start_at", "request_class", "length"), name="length_rollup_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="SiteEnergy",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("step_s", models.IntegerField()),
                ("start_at", models.DateTimeField()),
                ("kind", models.CharField(max_length=12)),
                ("energy_uj", models.BigIntegerField()),
                ("gpu_us", models.BigIntegerField()),
                ("carbon_gco2e", models.FloatField()),
                ("unknown_uj", models.BigIntegerField()),
                ("until", models.DateTimeField()),
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
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("step_s", "start_at", "site", "kind"), name="site_energy_once")
                ],
            },
        ),
        # The triggers lock what is summed up until the end: nothing comes between them and the sums of what is there.
        migrations.RunSQL(length_rollups.CREATE, length_rollups.DROP),
        migrations.RunSQL(length_rollups.FILL, migrations.RunSQL.noop),
        migrations.RunSQL(site_energy.CREATE, site_energy.DROP),
        migrations.RunSQL(site_energy.FILL, migrations.RunSQL.noop),
    ]
