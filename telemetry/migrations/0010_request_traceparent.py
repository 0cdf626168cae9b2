from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0009_statement_hours"),
    ]

    operations = [
        migrations.AddField(
            model_name="requestrecord",
            name="traceparent",
            field=models.CharField(max_length=55, null=True),
        ),
    ]
