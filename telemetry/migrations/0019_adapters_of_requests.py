from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0018_dead_rows_of_nodes_streams"),
    ]

    operations = [
        migrations.AddField(
            model_name="requestrecord",
            name="adapter",
            field=models.CharField(
                help_text="The LoRA adapter that it asked for; none: the service's model itself.",
                max_length=100,
                null=True,
            ),
        ),
    ]
