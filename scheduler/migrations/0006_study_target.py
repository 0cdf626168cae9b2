"""A study has the share of requests that is to keep every objective; figures of runs say whose Jain index they have."""

from __future__ import annotations

from django.db import migrations, models

RENAMED = """
UPDATE scheduler_studyrun
SET figures = figures - '{a}' - '{a}_by' || jsonb_build_object('{b}', figures->'{a}', '{b}_by', figures->'{a}_by')
WHERE figures ? '{a}'
"""


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0005_advisory_epochs"),
    ]

    operations = [
        migrations.AddField(
            model_name="study",
            name="target",
            field=models.FloatField(default=0.99, help_text="The share of requests that is to keep every objective."),
        ),
        migrations.RunSQL(RENAMED.format(a="jain", b="jain_lengths"), RENAMED.format(a="jain_lengths", b="jain")),
    ]
