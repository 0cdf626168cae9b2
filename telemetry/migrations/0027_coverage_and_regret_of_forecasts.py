from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0026_carbon_networks"),
    ]

    operations = [
        migrations.AddField(
            model_name="forecastscore",
            name="coverage",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="forecastscore",
            name="regret",
            field=models.FloatField(null=True),
        ),
    ]
