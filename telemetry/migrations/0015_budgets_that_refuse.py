from decimal import Decimal

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0014_rows_ahead_of_the_clock"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="budget",
            name="budget_of_something",
        ),
        migrations.AddField(
            model_name="budget",
            name="energy_kwh",
            field=models.DecimalField(
                blank=True,
                decimal_places=2,
                help_text="Serving energy of a month in kWh.",
                max_digits=14,
                null=True,
                validators=[django.core.validators.MinValueValidator(Decimal("0.01"))],
            ),
        ),
        migrations.AddField(
            model_name="budget",
            name="refuses",
            field=models.BooleanField(
                default=False,
                help_text="Refuse the tenant's requests for the rest of the month once an amount is spent.",
            ),
        ),
        migrations.AddField(
            model_name="budget",
            name="tokens",
            field=models.PositiveBigIntegerField(
                blank=True,
                help_text="Tokens of a month, of prompts and answers.",
                null=True,
                validators=[
                    django.core.validators.MinValueValidator(1),
                    django.core.validators.MaxValueValidator(1000000000000000),
                ],
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("amount__isnull", False),
                    ("carbon_kg__isnull", False),
                    ("energy_kwh__isnull", False),
                    ("tokens__isnull", False),
                    _connector="OR",
                ),
                name="budget_of_something",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("energy_kwh__gt", 0), ("energy_kwh__isnull", True), _connector="OR"),
                name="budget_energy_positive",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("tokens__gt", 0), ("tokens__isnull", True), _connector="OR"),
                name="budget_tokens_positive",
            ),
        ),
    ]
