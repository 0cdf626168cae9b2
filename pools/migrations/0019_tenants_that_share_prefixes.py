from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0018_limits_of_tenants_and_keys"),
    ]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="shares_prefixes",
            field=models.BooleanField(
                default=False,
                help_text="Engines reuse cached beginnings of prompts among all tenants for which this is set.",
            ),
        ),
    ]
