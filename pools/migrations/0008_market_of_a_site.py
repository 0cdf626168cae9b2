from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0007_site_colour"),
    ]

    operations = [
        migrations.AddField(
            model_name="site",
            name="market",
            field=models.CharField(
                blank=True,
                help_text="Market that its contracts for electricity must be from, for example AIB; empty: not declared.",
                max_length=60,
            ),
        ),
    ]
