from django.db import migrations, models

# Whoever was notified of an alert was notified of its level as it is now, as far as anybody knows.
LEVELS_SQL = """
UPDATE telemetry_alertnotice n SET level = a.level
FROM telemetry_alert a WHERE a.id = n.alert_id AND n.event = 'raised'
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0008_contracts_by_the_hour")]

    operations = [
        migrations.RemoveConstraint(model_name="alertnotice", name="alert_notice_once"),
        migrations.AddField(
            model_name="alertnotice",
            name="level",
            field=models.CharField(blank=True, choices=[("bad", "Bad"), ("warn", "Warn")], max_length=4),
        ),
        migrations.RunSQL(LEVELS_SQL, migrations.RunSQL.noop),
        migrations.AddConstraint(
            model_name="alertnotice",
            constraint=models.UniqueConstraint(fields=("alert", "event", "level", "channel"), name="alert_notice_once"),
        ),
    ]
