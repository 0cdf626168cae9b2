from decimal import Decimal

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0006_policy_in_force"),
        ("telemetry", "0005_report_file_names"),
    ]

    operations = [
        migrations.CreateModel(
            name="Budget",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "amount",
                    models.DecimalField(
                        blank=True,
                        decimal_places=2,
                        help_text="Electricity and GPU-hours of a month, in the currency.",
                        max_digits=14,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(Decimal("0.01"))],
                    ),
                ),
                ("currency", models.CharField(blank=True, help_text="Of the amount, such as USD.", max_length=3)),
                (
                    "carbon_kg",
                    models.DecimalField(
                        blank=True,
                        decimal_places=2,
                        help_text="kgCO2e of a month, location-based.",
                        max_digits=14,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(Decimal("0.01"))],
                    ),
                ),
                (
                    "tenant",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="budget", to="pools.tenant"
                    ),
                ),
            ],
            options={
                "ordering": ["tenant__name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("amount__isnull", False), ("carbon_kg__isnull", False), _connector="OR"),
                        name="budget_of_something",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("amount__gt", 0), ("currency__regex", "^[A-Z]{3}$")),
                            models.Q(("amount__isnull", True), ("currency", "")),
                            _connector="OR",
                        ),
                        name="budget_amount_has_a_currency",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("carbon_kg__gt", 0), ("carbon_kg__isnull", True), _connector="OR"),
                        name="budget_carbon_positive",
                    ),
                ],
            },
        ),
    ]
