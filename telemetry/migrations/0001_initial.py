import uuid
from decimal import Decimal

import django.core.validators
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.comparison
from django.conf import settings
from django.db import migrations, models

import telemetry.models.samples
from telemetry.storage.sql import (
    append_only,
    gpu_energy,
    length_rollups,
    partitioned_tables,
    request_rollups,
    site_energy,
    statement_hours,
)


class Migration(migrations.Migration):
    initial = True

    # Databases from before 0.1.0 are taken as they are where they had all of these; can go with 0.2.
    replaces = [
        ("telemetry", "0001_first_light"),
        ("telemetry", "0002_request_queue"),
        ("telemetry", "0003_energy_ledger"),
        ("telemetry", "0004_reports"),
        ("telemetry", "0005_alerts"),
        ("telemetry", "0006_feeds_and_forecasts"),
        ("telemetry", "0007_gpu_energy"),
        ("telemetry", "0008_ingested_batches"),
        ("telemetry", "0009_statement_hours"),
        ("telemetry", "0010_request_traceparent"),
        ("telemetry", "0011_request_rollups"),
        ("telemetry", "0012_site_and_length_rollups"),
        ("telemetry", "0013_requests_by_pool"),
        ("telemetry", "0014_engine_minutes"),
    ]

    dependencies = [
        ("pools", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="IngestedBatches",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "agent", "boot", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("agent", models.CharField(max_length=80)),
                ("boot", models.CharField(max_length=40)),
                ("seqs", telemetry.models.samples.WholeNumberRanges()),
                ("received_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="ReportSchedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True)),
                ("cadence", models.CharField(choices=[("weekly", "Weekly"), ("monthly", "Monthly")], max_length=8)),
                (
                    "asked",
                    models.JSONField(blank=True, default=dict, help_text="Fields of a report besides its period."),
                ),
                ("recipients", models.JSONField(blank=True, default=list, help_text="Mail addresses.")),
                ("enabled", models.BooleanField(default=True)),
                (
                    "last_period",
                    models.CharField(blank=True, help_text="The newest period that was asked for.", max_length=40),
                ),
                ("last_error", models.CharField(blank=True, max_length=500)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="RollupDue",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("start_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("rule", models.CharField(max_length=40)),
                (
                    "subject",
                    models.CharField(
                        blank=True, help_text="Whose: a site, node, pool, service; empty: all.", max_length=200
                    ),
                ),
                ("level", models.CharField(choices=[("bad", "Bad"), ("warn", "Warn")], max_length=4)),
                (
                    "state",
                    models.CharField(
                        choices=[("open", "Open"), ("acknowledged", "Acknowledged"), ("resolved", "Resolved")],
                        default="open",
                        max_length=12,
                    ),
                ),
                ("summary", models.CharField(max_length=500)),
                ("step", models.CharField(help_text="What to do next.", max_length=300)),
                ("value", models.FloatField(help_text="At last sight; null: it is not known now.", null=True)),
                ("threshold", models.FloatField()),
                ("unit", models.CharField(blank=True, max_length=10)),
                ("decision_id", models.BigIntegerField(null=True)),
                ("since", models.DateTimeField(help_text="When its rule began to hold.")),
                ("opened_at", models.DateTimeField(help_text="When it had held for long enough.")),
                ("last_seen_at", models.DateTimeField(help_text="When it was last seen to hold.")),
                ("resolved_at", models.DateTimeField(null=True)),
                ("acknowledged_at", models.DateTimeField(null=True)),
                (
                    "acknowledged_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-opened_at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="AlertNotice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("event", models.CharField(choices=[("raised", "Raised"), ("resolved", "Resolved")], max_length=8)),
                ("channel", models.CharField(choices=[("email", "e-mail"), ("webhook", "Webhook")], max_length=8)),
                (
                    "state",
                    models.CharField(
                        choices=[("pending", "Pending"), ("sent", "Sent"), ("failed", "Failed")],
                        default="pending",
                        max_length=8,
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("due_at", models.DateTimeField(help_text="When it is to be sent, or tried again.")),
                ("sent_at", models.DateTimeField(null=True)),
                ("error", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "alert",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="notices", to="telemetry.alert"
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
            },
        ),
        migrations.CreateModel(
            name="AlertSilence",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("rule", models.CharField(max_length=40)),
                ("subject", models.CharField(blank=True, max_length=200)),
                ("reason", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["expires_at", "id"],
            },
        ),
        migrations.CreateModel(
            name="AlertWatch",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("rule", models.CharField(max_length=40)),
                ("subject", models.CharField(blank=True, max_length=200)),
                ("at", models.DateTimeField()),
                ("breach_since", models.DateTimeField(null=True)),
                ("calm_since", models.DateTimeField(null=True)),
                (
                    "alert",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="telemetry.alert"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="CarbonFeed",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "provider",
                    models.CharField(help_text="Name of the adapter in settings.CARBON_PROVIDERS.", max_length=40),
                ),
                (
                    "signal",
                    models.CharField(
                        choices=[("average", "Average"), ("marginal", "Marginal"), ("price", "Price")],
                        default="average",
                        max_length=10,
                    ),
                ),
                (
                    "zone",
                    models.CharField(
                        blank=True, help_text="The provider's name of the zone; blank: the site's.", max_length=60
                    ),
                ),
                (
                    "factor",
                    models.CharField(
                        blank=True, help_text="direct or lifecycle; blank: the provider's usual.", max_length=10
                    ),
                ),
                (
                    "refresh_s",
                    models.FloatField(
                        blank=True, help_text="Seconds between two calls; blank: as the others.", null=True
                    ),
                ),
                ("config", models.JSONField(blank=True, default=dict)),
                (
                    "source",
                    models.CharField(blank=True, help_text="Shown under every figure drawn from it.", max_length=300),
                ),
                (
                    "forecast_model",
                    models.CharField(
                        blank=True,
                        help_text="The model whose forecast counts; blank: the provider's own.",
                        max_length=40,
                    ),
                ),
                ("last_tried_at", models.DateTimeField(blank=True, null=True)),
                ("last_ok_at", models.DateTimeField(blank=True, null=True)),
                ("last_error", models.CharField(blank=True, max_length=300)),
                ("last_error_at", models.DateTimeField(blank=True, null=True)),
                ("failures", models.PositiveIntegerField(default=0, help_text="In a row.")),
                ("cool_down_until", models.DateTimeField(blank=True, null=True)),
                (
                    "site",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="carbon_feeds", to="pools.site"
                    ),
                ),
            ],
            options={
                "ordering": ["site", "signal"],
            },
        ),
        migrations.CreateModel(
            name="CarbonPoint",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("start_at", models.DateTimeField()),
                ("end_at", models.DateTimeField()),
                ("value_g_per_kwh", models.FloatField(null=True)),
                ("price_per_kwh", models.FloatField(null=True)),
                ("currency", models.CharField(blank=True, max_length=3)),
                ("raw_value", models.FloatField(null=True)),
                ("raw_unit", models.CharField(max_length=40)),
                ("factor", models.CharField(blank=True, default="lifecycle", max_length=10)),
                ("forecast", models.BooleanField()),
                ("model", models.CharField(blank=True, max_length=40)),
                ("estimated", models.BooleanField(default=False)),
                ("provider", models.CharField(blank=True, max_length=40)),
                ("zone", models.CharField(blank=True, max_length=60)),
                ("issued_at", models.DateTimeField()),
                ("updated_at", models.DateTimeField(null=True)),
                ("received_at", models.DateTimeField(auto_now_add=True)),
                (
                    "feed",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="points", to="telemetry.carbonfeed"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="EmbodiedFactor",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("valid_from", models.DateTimeField(help_text="From when it holds.")),
                (
                    "valid_to",
                    models.DateTimeField(
                        blank=True, help_text="Until when it holds; empty: until the next one.", null=True
                    ),
                ),
                (
                    "source",
                    models.CharField(
                        help_text="Where the figure is from: shown beside what it is used for.", max_length=300
                    ),
                ),
                ("version", models.CharField(help_text="The source's own version or date.", max_length=60)),
                ("entered_at", models.DateTimeField(auto_now_add=True)),
                ("gpu_type", models.CharField(blank=True, max_length=40)),
                ("gpu_kg", models.FloatField(help_text="kgCO2e of one GPU.")),
                ("server_kg", models.FloatField(default=0.0, help_text="kgCO2e of the server without its GPUs.")),
                ("gpus_per_server", models.PositiveSmallIntegerField(default=8)),
                ("lifespan_years", models.FloatField()),
            ],
            options={
                "ordering": ["valid_from", "id"],
                "abstract": False,
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("gpu_kg__gte", 0), ("server_kg__gte", 0)), name="embodied_not_negative"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("lifespan_years__gt", 0), ("gpus_per_server__gt", 0)),
                        name="embodied_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("valid_to__isnull", True), ("valid_to__gt", models.F("valid_from")), _connector="OR"
                        ),
                        name="embodied_interval",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="EnergyEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("instance_id", models.BigIntegerField(null=True)),
                ("start_at", models.DateTimeField()),
                ("end_at", models.DateTimeField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("serving", "Serving"),
                            ("idle", "Idle"),
                            ("transition", "Transition"),
                            ("unattributed", "Unattributed"),
                        ],
                        max_length=12,
                    ),
                ),
                ("energy_uj", models.BigIntegerField()),
                (
                    "energy_j",
                    models.GeneratedField(
                        db_persist=True,
                        expression=django.db.models.expressions.CombinedExpression(
                            django.db.models.functions.comparison.Cast("energy_uj", models.FloatField()),
                            "/",
                            models.Value(1000000.0),
                        ),
                        output_field=models.FloatField(),
                    ),
                ),
                ("gpu_us", models.BigIntegerField(default=0, help_text="How long the GPU was at it.")),
                ("intensity_g_per_kwh", models.FloatField(null=True)),
                ("carbon_gco2e", models.FloatField(null=True)),
                ("posted_at", models.DateTimeField(auto_now_add=True)),
                (
                    "gpu",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="pools.gpu"),
                ),
                (
                    "pool",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="pools.pool"
                    ),
                ),
                (
                    "site",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="pools.site"),
                ),
            ],
        ),
        migrations.CreateModel(
            name="EnergyRollup",
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
                    "pool",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pools.pool",
                    ),
                ),
                (
                    "site",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="pools.site"),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ForecastScore",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("service", models.CharField(blank=True, max_length=100)),
                ("request_class", models.CharField(blank=True, max_length=20)),
                ("model", models.CharField(max_length=40)),
                ("scored_at", models.DateTimeField()),
                ("step_s", models.FloatField()),
                ("steps", models.PositiveIntegerField(help_text="How far ahead each origin looked.")),
                ("origins", models.PositiveIntegerField()),
                ("samples", models.PositiveIntegerField()),
                ("quantile", models.FloatField()),
                ("pinball", models.FloatField()),
                ("mape", models.FloatField(null=True)),
                ("chosen", models.BooleanField()),
                (
                    "feed",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="forecast_scores",
                        to="telemetry.carbonfeed",
                    ),
                ),
            ],
            options={
                "ordering": ["-scored_at", "pinball"],
            },
        ),
        migrations.CreateModel(
            name="GpuDay",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "gpu_id", "start_at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("start_at", models.DateTimeField()),
                ("samples", models.IntegerField()),
                ("heard_s", models.FloatField()),
                ("gaps", models.IntegerField()),
                ("power_w", models.FloatField(null=True)),
                ("power_max_w", models.FloatField(null=True)),
                ("sm_clock_mhz", models.FloatField(null=True)),
                ("utilisation", models.FloatField(null=True)),
                ("memory_max_bytes", models.BigIntegerField(null=True)),
                ("temperature_max_c", models.FloatField(null=True)),
                (
                    "gpu",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pools.gpu",
                    ),
                ),
            ],
            options={
                "db_table": "telemetry_gpuday",
            },
        ),
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
            options={
                "db_table": "telemetry_gpuenergy",
            },
        ),
        migrations.CreateModel(
            name="GpuHour",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "gpu_id", "start_at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("start_at", models.DateTimeField()),
                ("samples", models.IntegerField()),
                ("heard_s", models.FloatField()),
                ("gaps", models.IntegerField()),
                ("power_w", models.FloatField(null=True)),
                ("power_max_w", models.FloatField(null=True)),
                ("sm_clock_mhz", models.FloatField(null=True)),
                ("utilisation", models.FloatField(null=True)),
                ("memory_max_bytes", models.BigIntegerField(null=True)),
                ("temperature_max_c", models.FloatField(null=True)),
                (
                    "gpu",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pools.gpu",
                    ),
                ),
            ],
            options={
                "db_table": "telemetry_gpuhour",
            },
        ),
        migrations.CreateModel(
            name="GpuRate",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("valid_from", models.DateTimeField(help_text="From when it holds.")),
                (
                    "valid_to",
                    models.DateTimeField(
                        blank=True, help_text="Until when it holds; empty: until the next one.", null=True
                    ),
                ),
                (
                    "source",
                    models.CharField(
                        help_text="Where the figure is from: shown beside what it is used for.", max_length=300
                    ),
                ),
                ("version", models.CharField(help_text="The source's own version or date.", max_length=60)),
                ("entered_at", models.DateTimeField(auto_now_add=True)),
                ("gpu_type", models.CharField(help_text="As in the inventory of GPUs.", max_length=40)),
                ("currency", models.CharField(max_length=3)),
                ("rate_per_gpu_hour", models.FloatField()),
                (
                    "site",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="gpu_rates",
                        to="pools.site",
                    ),
                ),
            ],
            options={
                "ordering": ["valid_from", "id"],
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="Instrument",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("ppa", "power purchase agreement"),
                            ("certificate", "energy attribute certificates (REC, GO)"),
                            ("supplier", "supplier's own factor"),
                            ("residual", "residual mix"),
                        ],
                        max_length=12,
                    ),
                ),
                (
                    "factor_g_per_kwh",
                    models.DecimalField(
                        decimal_places=4,
                        help_text="gCO2e/kWh by contract.",
                        max_digits=10,
                        validators=[django.core.validators.MinValueValidator(Decimal("0"))],
                    ),
                ),
                (
                    "volume_kwh",
                    models.DecimalField(
                        blank=True,
                        decimal_places=3,
                        help_text="What it covers from valid_from to valid_to, for PPAs and certificates; used evenly over that time.",
                        max_digits=18,
                        null=True,
                    ),
                ),
                ("valid_from", models.DateTimeField()),
                ("valid_to", models.DateTimeField()),
                (
                    "source",
                    models.CharField(help_text="Contract or certificate numbers, or the disclosure.", max_length=300),
                ),
                ("entered_at", models.DateTimeField(auto_now_add=True)),
                (
                    "replaces",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="replaced_by",
                        to="telemetry.instrument",
                    ),
                ),
                (
                    "site",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="instruments", to="pools.site"
                    ),
                ),
            ],
            options={
                "ordering": ["site", "valid_from", "id"],
            },
        ),
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
            name="LoadPoint",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("service", models.CharField(max_length=100)),
                ("request_class", models.CharField(blank=True, max_length=20)),
                ("start_at", models.DateTimeField()),
                ("step_s", models.FloatField()),
                ("peak_rps", models.FloatField()),
                ("requests", models.PositiveIntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("service", "step_s", "request_class", "start_at"), name="load_point_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("peak_rps__gte", 0.0), ("step_s__gt", 0.0)), name="load_point_not_negative"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="MeterMark",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                ("energy_uj", models.BigIntegerField()),
                (
                    "energy_j",
                    models.GeneratedField(
                        db_persist=True,
                        expression=django.db.models.expressions.CombinedExpression(
                            django.db.models.functions.comparison.Cast("energy_uj", models.FloatField()),
                            "/",
                            models.Value(1000000.0),
                        ),
                        output_field=models.FloatField(),
                    ),
                ),
                ("opened_at", models.DateTimeField()),
                (
                    "opened_energy_uj",
                    models.BigIntegerField(
                        help_text="The counter at the first sample ever entered, lowered by what resets took off it since."
                    ),
                ),
                (
                    "opened_energy_j",
                    models.GeneratedField(
                        db_persist=True,
                        expression=django.db.models.expressions.CombinedExpression(
                            django.db.models.functions.comparison.Cast("opened_energy_uj", models.FloatField()),
                            "/",
                            models.Value(1000000.0),
                        ),
                        output_field=models.FloatField(),
                    ),
                ),
                (
                    "gpu",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="meter_mark", to="pools.gpu"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Pue",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("valid_from", models.DateTimeField(help_text="From when it holds.")),
                (
                    "valid_to",
                    models.DateTimeField(
                        blank=True, help_text="Until when it holds; empty: until the next one.", null=True
                    ),
                ),
                (
                    "source",
                    models.CharField(
                        help_text="Where the figure is from: shown beside what it is used for.", max_length=300
                    ),
                ),
                ("version", models.CharField(help_text="The source's own version or date.", max_length=60)),
                ("entered_at", models.DateTimeField(auto_now_add=True)),
                ("value", models.FloatField()),
                (
                    "site",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="pues", to="pools.site"
                    ),
                ),
            ],
            options={
                "ordering": ["valid_from", "id"],
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="Report",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("asked", models.JSONField(help_text="Fields of telemetry.reports.asked.Asked.")),
                ("period_start", models.DateTimeField()),
                ("period_end", models.DateTimeField()),
                ("revision", models.PositiveIntegerField(default=1)),
                ("ledger_version", models.BigIntegerField(help_text="The newest settlement that is in it.", null=True)),
                (
                    "basis",
                    models.JSONField(help_text="Names, contracts, meters and SLO counts as they were.", null=True),
                ),
                ("summary", models.JSONField(help_text="The figures that lists show; null is not known.", null=True)),
                (
                    "changes",
                    models.JSONField(default=list, help_text="Intervals that differ from the revision before."),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("signed_by", models.CharField(blank=True, max_length=150)),
                ("signed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="report", to="pools.job"
                    ),
                ),
                (
                    "revises",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="revised_by",
                        to="telemetry.report",
                    ),
                ),
                (
                    "schedule",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="telemetry.reportschedule",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="ReportFile",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("format", models.CharField(max_length=20)),
                ("name", models.CharField(max_length=120)),
                ("sha256", models.CharField(max_length=64)),
                ("size_bytes", models.BigIntegerField()),
                ("rows", models.BigIntegerField(null=True)),
                (
                    "report",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="files", to="telemetry.report"
                    ),
                ),
            ],
            options={
                "ordering": ["report", "id"],
            },
        ),
        migrations.CreateModel(
            name="Settlement",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("start_at", models.DateTimeField()),
                ("end_at", models.DateTimeField()),
                ("revision", models.PositiveIntegerField()),
                ("cause", models.CharField(help_text="What changed since the revision before.", max_length=100)),
                ("sources", models.JSONField()),
                ("currency", models.CharField(max_length=3)),
                (
                    "energy_uj",
                    models.BigIntegerField(help_text="All of the site's GPUs, as the energy entries have it."),
                ),
                (
                    "unattributed_uj",
                    models.BigIntegerField(help_text="Of that, what is nobody's: missing samples or requests."),
                ),
                ("made_at", models.DateTimeField(auto_now_add=True)),
                (
                    "shares",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="telemetry.settlement",
                    ),
                ),
                (
                    "site",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="pools.site"),
                ),
            ],
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
        ),
        migrations.CreateModel(
            name="SloMinute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("service", models.CharField(max_length=100)),
                ("kind", models.CharField(max_length=8)),
                ("start_at", models.DateTimeField()),
                ("judged", models.IntegerField()),
                ("within", models.IntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("start_at", "service", "kind"), name="slo_minute_once"),
                    models.CheckConstraint(
                        condition=models.Q(("within__gte", 0), ("within__lte", models.F("judged"))),
                        name="slo_minute_counts",
                    ),
                ],
            },
        ),
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
            name="StatementHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("energy_uj", models.BigIntegerField()),
                ("prefill_uj", models.BigIntegerField(default=0)),
                (
                    "facility_uj",
                    models.BigIntegerField(default=0, help_text="The same at the site's own meter: x PUE."),
                ),
                ("gpu_us", models.BigIntegerField(default=0)),
                ("carbon_ug", models.BigIntegerField(default=0)),
                ("carbon_unknown_uj", models.BigIntegerField(default=0)),
                ("cost_nano", models.BigIntegerField(default=0)),
                ("cost_unknown_uj", models.BigIntegerField(default=0)),
                ("rental_nano", models.BigIntegerField(default=0)),
                ("rental_unknown_us", models.BigIntegerField(default=0)),
                ("embodied_ug", models.BigIntegerField(default=0)),
                ("embodied_unknown_us", models.BigIntegerField(default=0)),
                ("requests", models.BigIntegerField(default=0)),
                ("prompt_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                ("start_at", models.DateTimeField()),
                ("kind", models.CharField(max_length=12)),
                ("pool_id", models.BigIntegerField(null=True)),
                ("service", models.CharField(blank=True, max_length=100)),
                ("tenant_id", models.BigIntegerField(null=True)),
                ("currency", models.CharField(max_length=3)),
                ("lines", models.IntegerField()),
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
        ),
        migrations.CreateModel(
            name="StatementLine",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("energy_uj", models.BigIntegerField()),
                ("prefill_uj", models.BigIntegerField(default=0)),
                (
                    "facility_uj",
                    models.BigIntegerField(default=0, help_text="The same at the site's own meter: x PUE."),
                ),
                ("gpu_us", models.BigIntegerField(default=0)),
                ("carbon_ug", models.BigIntegerField(default=0)),
                ("carbon_unknown_uj", models.BigIntegerField(default=0)),
                ("cost_nano", models.BigIntegerField(default=0)),
                ("cost_unknown_uj", models.BigIntegerField(default=0)),
                ("rental_nano", models.BigIntegerField(default=0)),
                ("rental_unknown_us", models.BigIntegerField(default=0)),
                ("embodied_ug", models.BigIntegerField(default=0)),
                ("embodied_unknown_us", models.BigIntegerField(default=0)),
                ("requests", models.BigIntegerField(default=0)),
                ("prompt_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                (
                    "entry",
                    models.CharField(
                        choices=[("original", "Original"), ("reversal", "Reversal"), ("restated", "Restated")],
                        max_length=8,
                    ),
                ),
                ("kind", models.CharField(max_length=12)),
                ("service", models.CharField(blank=True, max_length=100)),
                (
                    "pool",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pools.pool",
                    ),
                ),
                (
                    "settlement",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="lines", to="telemetry.settlement"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pools.tenant",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Tariff",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("valid_from", models.DateTimeField(help_text="From when it holds.")),
                (
                    "valid_to",
                    models.DateTimeField(
                        blank=True, help_text="Until when it holds; empty: until the next one.", null=True
                    ),
                ),
                (
                    "source",
                    models.CharField(
                        help_text="Where the figure is from: shown beside what it is used for.", max_length=300
                    ),
                ),
                ("version", models.CharField(help_text="The source's own version or date.", max_length=60)),
                ("entered_at", models.DateTimeField(auto_now_add=True)),
                ("currency", models.CharField(max_length=3)),
                ("price_per_kwh", models.FloatField(help_text="When no window holds, in the currency.")),
                (
                    "windows",
                    models.JSONField(
                        blank=True, default=list, help_text="Time of use: from, to, price_per_kwh, days, months"
                    ),
                ),
                (
                    "demand_per_kw",
                    models.FloatField(default=0.0, help_text="For each kW of the month's peak quarter of an hour."),
                ),
                (
                    "site",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="tariffs", to="pools.site"
                    ),
                ),
            ],
            options={
                "ordering": ["valid_from", "id"],
                "abstract": False,
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
        ),
        migrations.AddIndex(
            model_name="alert",
            index=models.Index(fields=["-opened_at", "-id"], name="alert_newest"),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "resolved"), _negated=True),
                fields=("rule", "subject"),
                name="alert_open_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("resolved_at__isnull", False), ("state", "resolved")),
                    models.Q(models.Q(("state", "resolved"), _negated=True), ("resolved_at__isnull", True)),
                    _connector="OR",
                ),
                name="alert_resolved_at",
            ),
        ),
        migrations.AddIndex(
            model_name="alertnotice",
            index=models.Index(condition=models.Q(("state", "pending")), fields=["due_at"], name="alert_notice_due"),
        ),
        migrations.AddConstraint(
            model_name="alertnotice",
            constraint=models.UniqueConstraint(fields=("alert", "event", "channel"), name="alert_notice_once"),
        ),
        migrations.AddConstraint(
            model_name="alertsilence",
            constraint=models.CheckConstraint(
                condition=models.Q(("expires_at__gte", models.F("created_at"))), name="alert_silence_interval"
            ),
        ),
        migrations.AddConstraint(
            model_name="alertwatch",
            constraint=models.UniqueConstraint(fields=("rule", "subject"), name="alert_watch_once"),
        ),
        migrations.AddConstraint(
            model_name="carbonfeed",
            constraint=models.UniqueConstraint(fields=("site", "signal"), name="carbon_feed_signal_per_site"),
        ),
        migrations.AddConstraint(
            model_name="carbonfeed",
            constraint=models.CheckConstraint(
                condition=models.Q(("refresh_s__isnull", True), ("refresh_s__gte", 1.0), _connector="OR"),
                name="carbon_feed_refresh_above_a_second",
            ),
        ),
        migrations.AddConstraint(
            model_name="carbonpoint",
            constraint=models.UniqueConstraint(
                fields=("feed", "start_at", "forecast", "model", "issued_at"), name="carbon_point_revision"
            ),
        ),
        migrations.AddConstraint(
            model_name="carbonpoint",
            constraint=models.CheckConstraint(
                condition=models.Q(("end_at__gt", models.F("start_at"))), name="carbon_point_interval"
            ),
        ),
        migrations.AddConstraint(
            model_name="carbonpoint",
            constraint=models.CheckConstraint(
                condition=models.Q(("value_g_per_kwh__isnull", True), ("price_per_kwh__isnull", True), _connector="OR"),
                name="carbon_point_one_signal",
            ),
        ),
        migrations.AddConstraint(
            model_name="carbonpoint",
            constraint=models.CheckConstraint(
                condition=models.Q(("model", ""), ("forecast", True), _connector="OR"),
                name="carbon_point_models_forecast",
            ),
        ),
        migrations.AddIndex(
            model_name="energyentry",
            index=models.Index(fields=["start_at", "site"], name="telemetry_e_start_a_7b7bb1_idx"),
        ),
        migrations.AddIndex(
            model_name="energyentry",
            index=models.Index(fields=["end_at"], name="telemetry_e_end_at_d3968a_idx"),
        ),
        migrations.AddConstraint(
            model_name="energyentry",
            constraint=models.CheckConstraint(
                condition=models.Q(("energy_uj__gte", 0)), name="energy_entry_not_negative"
            ),
        ),
        migrations.AddConstraint(
            model_name="energyentry",
            constraint=models.CheckConstraint(
                condition=models.Q(("end_at__gt", models.F("start_at"))), name="energy_entry_interval"
            ),
        ),
        migrations.AddConstraint(
            model_name="energyentry",
            constraint=models.UniqueConstraint(
                fields=("gpu", "start_at", "kind", "instance_id"), name="energy_entry_once", nulls_distinct=False
            ),
        ),
        migrations.AddConstraint(
            model_name="energyrollup",
            constraint=models.UniqueConstraint(
                fields=("step_s", "start_at", "site", "pool", "kind"), name="energy_rollup_once", nulls_distinct=False
            ),
        ),
        migrations.AddIndex(
            model_name="forecastscore",
            index=models.Index(
                fields=["service", "request_class", "-scored_at"], name="telemetry_f_service_1d0eea_idx"
            ),
        ),
        migrations.AddConstraint(
            model_name="forecastscore",
            constraint=models.UniqueConstraint(
                fields=("feed", "service", "request_class", "model", "scored_at"),
                name="forecast_score_once",
                nulls_distinct=False,
            ),
        ),
        migrations.AddConstraint(
            model_name="forecastscore",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("feed__isnull", False), ("service", "")),
                    models.Q(("feed__isnull", True), models.Q(("service", ""), _negated=True)),
                    _connector="OR",
                ),
                name="forecast_score_of_one_thing",
            ),
        ),
        migrations.AddConstraint(
            model_name="gpurate",
            constraint=models.CheckConstraint(
                condition=models.Q(("currency__regex", "^[A-Z]{3}$")), name="gpu_rate_currency_iso4217"
            ),
        ),
        migrations.AddConstraint(
            model_name="gpurate",
            constraint=models.CheckConstraint(
                condition=models.Q(("rate_per_gpu_hour__gte", 0)), name="gpu_rate_not_negative"
            ),
        ),
        migrations.AddConstraint(
            model_name="gpurate",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("valid_to__isnull", True), ("valid_to__gt", models.F("valid_from")), _connector="OR"
                ),
                name="gpu_rate_interval",
            ),
        ),
        migrations.AddConstraint(
            model_name="instrument",
            constraint=models.CheckConstraint(
                condition=models.Q(("factor_g_per_kwh__gte", 0)), name="instrument_factor_not_negative"
            ),
        ),
        migrations.AddConstraint(
            model_name="instrument",
            constraint=models.CheckConstraint(
                condition=models.Q(("valid_to__gt", models.F("valid_from"))), name="instrument_interval"
            ),
        ),
        migrations.AddConstraint(
            model_name="instrument",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("kind__in", ("ppa", "certificate")), ("volume_kwh__gt", 0)),
                    models.Q(
                        models.Q(("kind__in", ("ppa", "certificate")), _negated=True), ("volume_kwh__isnull", True)
                    ),
                    _connector="OR",
                ),
                name="instrument_volume",
            ),
        ),
        migrations.AddConstraint(
            model_name="pue",
            constraint=models.CheckConstraint(condition=models.Q(("value__gte", 1.0)), name="pue_at_least_1"),
        ),
        migrations.AddConstraint(
            model_name="pue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("valid_to__isnull", True), ("valid_to__gt", models.F("valid_from")), _connector="OR"
                ),
                name="pue_interval",
            ),
        ),
        migrations.AddConstraint(
            model_name="reportfile",
            constraint=models.UniqueConstraint(fields=("report", "format"), name="report_file_once"),
        ),
        migrations.AddConstraint(
            model_name="report",
            constraint=models.CheckConstraint(
                condition=models.Q(("period_end__gt", models.F("period_start"))), name="report_period"
            ),
        ),
        migrations.AddIndex(
            model_name="settlement",
            index=models.Index(fields=["start_at", "site"], name="telemetry_s_start_a_8d5ad8_idx"),
        ),
        migrations.AddConstraint(
            model_name="settlement",
            constraint=models.UniqueConstraint(fields=("site", "start_at", "revision"), name="settlement_revision"),
        ),
        migrations.AddConstraint(
            model_name="settlement",
            constraint=models.CheckConstraint(
                condition=models.Q(("end_at__gt", models.F("start_at"))), name="settlement_interval"
            ),
        ),
        migrations.AddConstraint(
            model_name="settlement",
            constraint=models.CheckConstraint(
                condition=models.Q(("unattributed_uj__gte", 0), ("unattributed_uj__lte", models.F("energy_uj"))),
                name="settlement_unattributed",
            ),
        ),
        migrations.AddConstraint(
            model_name="siteenergy",
            constraint=models.UniqueConstraint(fields=("step_s", "start_at", "site", "kind"), name="site_energy_once"),
        ),
        migrations.AddConstraint(
            model_name="statementhour",
            constraint=models.UniqueConstraint(
                fields=("start_at", "site", "pool_id", "kind", "service", "tenant_id", "currency"),
                name="statement_hour_once",
                nulls_distinct=False,
            ),
        ),
        migrations.AddConstraint(
            model_name="statementline",
            constraint=models.UniqueConstraint(
                fields=("settlement", "entry", "kind", "pool", "service", "tenant"),
                name="statement_line_once",
                nulls_distinct=False,
            ),
        ),
        migrations.AddConstraint(
            model_name="tariff",
            constraint=models.CheckConstraint(
                condition=models.Q(("currency__regex", "^[A-Z]{3}$")), name="tariff_currency_iso4217"
            ),
        ),
        migrations.AddConstraint(
            model_name="tariff",
            constraint=models.CheckConstraint(
                condition=models.Q(("demand_per_kw__gte", 0)), name="tariff_demand_not_negative"
            ),
        ),
        migrations.AddConstraint(
            model_name="tariff",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("valid_to__isnull", True), ("valid_to__gt", models.F("valid_from")), _connector="OR"
                ),
                name="tariff_interval",
            ),
        ),
        migrations.AddConstraint(
            model_name="tenantrollup",
            constraint=models.UniqueConstraint(fields=("step_s", "start_at", "tenant"), name="tenant_rollup_once"),
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(partitioned_tables.CREATE, partitioned_tables.DROP)],
            state_operations=[
                migrations.CreateModel(
                    name="RequestShare",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "start_at",
                                "settlement_id",
                                "request_id",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("start_at", models.DateTimeField()),
                        ("settlement_id", models.BigIntegerField()),
                        ("started_at", models.DateTimeField()),
                        ("request_id", models.CharField(max_length=64)),
                        ("prefill_uj", models.BigIntegerField()),
                        ("decode_uj", models.BigIntegerField()),
                        ("gpu_us", models.BigIntegerField()),
                    ],
                    options={
                        "db_table": "telemetry_requestshare",
                    },
                ),
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
                migrations.CreateModel(
                    name="GpuMinute",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "gpu_id", "start_at", blank=True, editable=False, primary_key=True, serialize=False
                            ),
                        ),
                        ("start_at", models.DateTimeField()),
                        ("samples", models.IntegerField()),
                        ("heard_s", models.FloatField()),
                        ("gaps", models.IntegerField()),
                        ("power_w", models.FloatField(null=True)),
                        ("power_max_w", models.FloatField(null=True)),
                        ("sm_clock_mhz", models.FloatField(null=True)),
                        ("utilisation", models.FloatField(null=True)),
                        ("memory_max_bytes", models.BigIntegerField(null=True)),
                        ("temperature_max_c", models.FloatField(null=True)),
                        (
                            "gpu",
                            models.ForeignKey(
                                db_constraint=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="pools.gpu",
                            ),
                        ),
                    ],
                    options={
                        "db_table": "telemetry_gpuminute",
                    },
                ),
                migrations.CreateModel(
                    name="GpuSample",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "at", "gpu_id", blank=True, editable=False, primary_key=True, serialize=False
                            ),
                        ),
                        ("at", models.DateTimeField()),
                        ("energy_j", models.FloatField(null=True)),
                        ("power_w", models.FloatField(null=True)),
                        ("sm_clock_mhz", models.FloatField(null=True)),
                        ("utilisation", models.FloatField(null=True)),
                        ("memory_used_bytes", models.BigIntegerField(null=True)),
                        ("temperature_c", models.FloatField(null=True)),
                        ("instance_state", models.CharField(max_length=10, null=True)),
                        ("running", models.IntegerField(null=True)),
                        (
                            "gpu",
                            models.ForeignKey(
                                db_constraint=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="pools.gpu",
                            ),
                        ),
                        (
                            "instance",
                            models.ForeignKey(
                                db_constraint=False,
                                null=True,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="pools.instance",
                            ),
                        ),
                    ],
                    options={
                        "db_table": "telemetry_gpusample",
                    },
                ),
                migrations.CreateModel(
                    name="InstanceSample",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "at", "instance_id", blank=True, editable=False, primary_key=True, serialize=False
                            ),
                        ),
                        ("at", models.DateTimeField()),
                        ("state", models.CharField(max_length=10)),
                        ("running", models.IntegerField(null=True)),
                        ("waiting", models.IntegerField(null=True)),
                        ("kv_usage", models.FloatField(null=True)),
                        ("prompt_tokens_total", models.FloatField(null=True)),
                        ("generation_tokens_total", models.FloatField(null=True)),
                        ("ttft_s", models.FloatField(null=True)),
                        ("tpot_s", models.FloatField(null=True)),
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
                        "db_table": "telemetry_instancesample",
                    },
                ),
                migrations.CreateModel(
                    name="RequestRecord",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "started_at",
                                "request_id",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("started_at", models.DateTimeField()),
                        ("request_id", models.CharField(max_length=64)),
                        ("service", models.CharField(max_length=100)),
                        ("key_id", models.BigIntegerField(null=True)),
                        ("endpoint", models.CharField(max_length=20)),
                        ("stream", models.BooleanField()),
                        (
                            "status",
                            models.CharField(
                                choices=[
                                    ("ok", "Ok"),
                                    ("client_error", "Client Error"),
                                    ("client_gone", "Client Gone"),
                                    ("upstream_error", "Upstream Error"),
                                    ("timeout", "Timeout"),
                                    ("rejected", "Rejected"),
                                ],
                                max_length=20,
                            ),
                        ),
                        ("http_status", models.IntegerField()),
                        ("prompt_tokens", models.IntegerField(null=True)),
                        ("output_tokens", models.IntegerField(null=True)),
                        ("tokens_source", models.CharField(max_length=10, null=True)),
                        ("predicted_output_tokens", models.IntegerField(null=True)),
                        ("prediction_source", models.CharField(max_length=10, null=True)),
                        ("max_tokens", models.IntegerField(null=True)),
                        ("request_class", models.CharField(max_length=20, null=True)),
                        ("actual_class", models.CharField(max_length=20, null=True)),
                        ("instance_uid", models.UUIDField(null=True)),
                        ("ttft_s", models.FloatField(null=True)),
                        ("tpot_s", models.FloatField(null=True)),
                        ("itl_max_s", models.FloatField(null=True)),
                        ("e2e_s", models.FloatField(null=True)),
                        ("window_s", models.FloatField(null=True)),
                        ("timely_tokens", models.IntegerField(null=True)),
                        ("predicted_energy_j", models.FloatField(null=True)),
                        ("queue_s", models.FloatField(null=True)),
                        ("lost", models.BooleanField(default=False)),
                        ("own_ttft_s", models.FloatField(null=True)),
                        ("own_tpot_s", models.FloatField(null=True)),
                        ("attempts", models.IntegerField()),
                        ("route_reason", models.CharField(max_length=200)),
                        ("error", models.CharField(max_length=500)),
                        ("slo_met", models.BooleanField(null=True)),
                        ("slo_failed", models.CharField(max_length=40)),
                        ("traceparent", models.CharField(max_length=55, null=True)),
                        (
                            "pool",
                            models.ForeignKey(
                                db_constraint=False,
                                null=True,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="pools.pool",
                            ),
                        ),
                        (
                            "tenant",
                            models.ForeignKey(
                                db_constraint=False,
                                null=True,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="pools.tenant",
                            ),
                        ),
                    ],
                    options={
                        "db_table": "telemetry_requestrecord",
                    },
                ),
            ],
        ),
        migrations.RunSQL(partitioned_tables.HOURS_INDEX, partitioned_tables.NO_HOURS_INDEX),
        migrations.RunSQL(append_only.CREATE, append_only.DROP),
        migrations.RunSQL(gpu_energy.CREATE, gpu_energy.DROP),
        migrations.RunSQL(statement_hours.CREATE, statement_hours.DROP),
        migrations.RunSQL(request_rollups.CREATE, request_rollups.DROP),
        migrations.RunSQL(request_rollups.INDEXES, request_rollups.NO_INDEXES),
        migrations.RunSQL(length_rollups.CREATE, length_rollups.DROP),
        migrations.RunSQL(site_energy.CREATE, site_energy.DROP),
    ]
