import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0022_class_probability_of_requests"),
    ]

    operations = [
        migrations.CreateModel(
            name="LearnedForecast",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tried_at", models.DateTimeField()),
                ("learned_at", models.DateTimeField(null=True)),
                (
                    "hours",
                    models.PositiveIntegerField(help_text="Of measured values that it was learned from.", null=True),
                ),
                ("model", models.BinaryField(null=True)),
                ("note", models.CharField(blank=True, max_length=300)),
                (
                    "feed",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="learned_forecast",
                        to="telemetry.carbonfeed",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("hours__isnull", True), ("learned_at__isnull", True), ("model__isnull", True)),
                            models.Q(("hours__isnull", False), ("learned_at__isnull", False), ("model__isnull", False)),
                            _connector="OR",
                        ),
                        name="learned_forecast_whole",
                    )
                ],
            },
        ),
    ]
