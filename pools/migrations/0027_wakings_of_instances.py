from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0026_power_of_servers"),
    ]

    operations = [
        migrations.AddField(
            model_name="instance",
            name="wake_asked_at",
            field=models.DateTimeField(blank=True, help_text="When it was last asked to wake from sleep.", null=True),
        ),
        migrations.AddField(
            model_name="instance",
            name="woken_at",
            field=models.DateTimeField(blank=True, help_text="When it was ready after that; null: not yet.", null=True),
        ),
    ]
