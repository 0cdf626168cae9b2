from datetime import UTC, datetime, timedelta

import django.db.models.deletion
from django.db import migrations, models

from telemetry import partitions
from telemetry.sql import engine_minutes


def fill(apps, schema_editor):
    """Yesterday's and today's minutes; of older ones there are only the samples."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    start = today - timedelta(days=1)
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM (SELECT FROM telemetry_instancesample LIMIT 1) AS one")
        if cursor.fetchone()[0]:
            partitions.ensure([start.date(), today.date()], ("telemetry_engineminute",))
            cells = [start + timedelta(minutes=n) for n in range(2 * 24 * 60)]
            cursor.execute(engine_minutes.FILL, {"start": start, "end": today + timedelta(days=1), "cells": cells})


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0006_engine_launch"),
        ("telemetry", "0013_requests_by_pool"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(engine_minutes.CREATE, engine_minutes.DROP)],
            state_operations=[
                migrations.CreateModel(
                    name="EngineMinute",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "instance_id", "start_at", blank=True, editable=False, primary_key=True, serialize=False
                            ),
                        ),
                        ("start_at", models.DateTimeField()),
                        ("samples", models.IntegerField()),
                        ("running", models.FloatField(null=True)),
                        ("waiting", models.FloatField(null=True)),
                        ("kv_usage_max", models.FloatField(null=True)),
                        ("sm_clock_mhz", models.FloatField(null=True)),
                        (
                            "instance",
                            models.ForeignKey(
                                db_constraint=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="pools.instance",
                            ),
                        ),
                    ],
                    options={
                        "db_table": "telemetry_engineminute",
                    },
                ),
            ],
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
