from django.db import migrations, models

from telemetry.storage.sql import statement_hours

HELP = "The LoRA adapter that the requests asked for; empty: none, or settled before lines said it."


def adapter(model_name):
    field = models.CharField(blank=True, db_default="", help_text=HELP, max_length=100)
    return migrations.AddField(model_name=model_name, name="adapter", field=field)


class Migration(migrations.Migration):
    """Lines that were settled before name no adapter, and their hours stay as they are."""

    dependencies = [
        ("pools", "0025_slices_of_gpus"),
        ("telemetry", "0020_judging_answers_at_once"),
    ]

    operations = [
        migrations.RunSQL(statement_hours.DROP, statement_hours.create(statement_hours.AMOUNTS)),
        migrations.RemoveConstraint(model_name="statementhour", name="statement_hour_once"),
        migrations.RemoveConstraint(model_name="statementline", name="statement_line_once"),
        adapter("statementhour"),
        adapter("statementline"),
        migrations.AddConstraint(
            model_name="statementhour",
            constraint=models.UniqueConstraint(
                fields=["start_at", "site", "pool_id", "kind", "service", "tenant_id", "adapter", "currency"],
                name="statement_hour_once",
                nulls_distinct=False,
            ),
        ),
        migrations.AddConstraint(
            model_name="statementline",
            constraint=models.UniqueConstraint(
                fields=["settlement", "entry", "kind", "pool", "service", "tenant", "adapter"],
                name="statement_line_once",
                nulls_distinct=False,
            ),
        ),
        migrations.RunSQL(statement_hours.create(statement_hours.AMOUNTS, statement_hours.KEYS), statement_hours.DROP),
    ]
