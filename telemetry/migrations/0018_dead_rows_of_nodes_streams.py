from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0017_rows_of_the_release_before"),
    ]

    operations = [
        migrations.AlterField(
            model_name="deadrow",
            name="stream",
            field=models.CharField(max_length=80),
        ),
    ]
