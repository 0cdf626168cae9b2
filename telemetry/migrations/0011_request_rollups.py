import django.db.models.deletion
from django.db import migrations, models

from telemetry.sql import request_rollups


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0004_people"),
        ("telemetry", "0010_request_traceparent"),
    ]

    operations = [
        migrations.CreateModel(
            name="SloRollup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("step_s", models.IntegerField()),
                ("start_at", models.DateTimeField()),
                ("service", models.CharField(max_length=100)),
                ("kind", models.CharField(blank=True, max_length=8)),
                ("judged", models.IntegerField()),
                ("within", models.IntegerField()),
                ("until", models.DateTimeField(help_text="When the last of them ended.")),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("step_s", "start_at", "service", "kind"), name="slo_rollup_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="TenantRollup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("step_s", models.IntegerField()),
                ("start_at", models.DateTimeField()),
                ("timely_tokens", models.BigIntegerField()),
                ("output_tokens", models.BigIntegerField()),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pools.tenant",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("step_s", "start_at", "tenant"), name="tenant_rollup_once")
                ],
            },
        ),
        # The triggers lock the records until the end: none comes between them and the sums of those that are there.
        migrations.RunSQL(request_rollups.CREATE, request_rollups.DROP),
        migrations.RunSQL(request_rollups.FILL, migrations.RunSQL.noop),
        migrations.RunSQL(request_rollups.INDEX, request_rollups.NO_INDEX),
    ]
