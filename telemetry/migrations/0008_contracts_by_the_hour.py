from decimal import Decimal

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

from telemetry.storage.sql import append_only


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0008_market_of_a_site"),
        ("telemetry", "0007_synthetic_history"),
    ]

    operations = [
        migrations.CreateModel(
            name="InstrumentHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("start_at", models.DateTimeField(help_text="Start of the hour.")),
                (
                    "energy_kwh",
                    models.DecimalField(
                        blank=True,
                        decimal_places=3,
                        help_text="Generated in the hour for this contract; empty: not known.",
                        max_digits=15,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(Decimal("0"))],
                    ),
                ),
                ("source", models.CharField(help_text="Whose meter, or which statement.", max_length=300)),
                ("entered_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ["instrument", "start_at", "id"],
            },
        ),
        migrations.RemoveConstraint(
            model_name="instrument",
            name="instrument_volume",
        ),
        migrations.AddField(
            model_name="instrument",
            name="bundled",
            field=models.BooleanField(
                blank=True,
                help_text="Whether the attributes came with the energy itself; empty: not declared.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="instrument",
            name="cancellation",
            field=models.CharField(
                blank=True, help_text="Registry and number of the cancellation (retirement) for you.", max_length=200
            ),
        ),
        migrations.AddField(
            model_name="instrument",
            name="generation",
            field=models.CharField(
                choices=[
                    ("even", "the same in all hours"),
                    ("profile", "by a profile of the day"),
                    ("metered", "metered: by the contract's hours"),
                ],
                default="even",
                help_text="When the volume of a PPA or certificate is generated: what hourly matching goes by.",
                max_length=8,
            ),
        ),
        migrations.AddField(
            model_name="instrument",
            name="market",
            field=models.CharField(blank=True, help_text="Market that it is from; that of the site.", max_length=60),
        ),
        migrations.AddField(
            model_name="instrument",
            name="mix",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text='Share of each energy source, such as {"wind": 1}; empty: not declared. Of: coal, oil, gas, other fossil, nuclear, wind, wind offshore, solar, hydro, geothermal, marine, biomass, other renewable.',
            ),
        ),
        migrations.AddField(
            model_name="instrument",
            name="profile",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text="Of generation by a profile: 24 whole numbers, the weights of the UTC hours.",
            ),
        ),
        migrations.AddField(
            model_name="instrument",
            name="vintage_year",
            field=models.PositiveSmallIntegerField(
                blank=True,
                help_text="Year in which the energy was generated.",
                null=True,
                validators=[
                    django.core.validators.MinValueValidator(1990),
                    django.core.validators.MaxValueValidator(2200),
                ],
            ),
        ),
        migrations.AlterField(
            model_name="instrument",
            name="volume_kwh",
            field=models.DecimalField(
                blank=True,
                decimal_places=3,
                help_text="What it covers from valid_from to valid_to, for PPAs and certificates; empty where it is metered.",
                max_digits=18,
                null=True,
            ),
        ),
        migrations.AddConstraint(
            model_name="instrument",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("generation__in", ("even", "profile")),
                        ("kind__in", ("ppa", "certificate")),
                        ("volume_kwh__gt", 0),
                    ),
                    models.Q(
                        ("generation", "metered"), ("kind__in", ("ppa", "certificate")), ("volume_kwh__isnull", True)
                    ),
                    models.Q(
                        models.Q(("kind__in", ("ppa", "certificate")), _negated=True),
                        ("generation", "even"),
                        ("volume_kwh__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="instrument_volume",
            ),
        ),
        migrations.AddField(
            model_name="instrumenthour",
            name="instrument",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="hours", to="telemetry.instrument"
            ),
        ),
        migrations.AddIndex(
            model_name="instrumenthour",
            index=models.Index(fields=["instrument", "start_at"], name="telemetry_i_instrum_716567_idx"),
        ),
        migrations.AddConstraint(
            model_name="instrumenthour",
            constraint=models.CheckConstraint(
                condition=models.Q(("energy_kwh__isnull", True), ("energy_kwh__gte", 0), _connector="OR"),
                name="instrument_hour_not_negative",
            ),
        ),
        migrations.RunSQL(append_only.create("instrumenthour"), append_only.drop("instrumenthour")),
    ]
