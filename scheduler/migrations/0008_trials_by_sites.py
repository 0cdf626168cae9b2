import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F, Q

SERVICES_SQL = """
UPDATE scheduler_trialblock b SET service_id = t.service_id FROM scheduler_trial t WHERE t.id = b.trial_id;
SET CONSTRAINTS ALL IMMEDIATE
"""


class Migration(migrations.Migration):
    dependencies = [("pools", "0008_market_of_a_site"), ("scheduler", "0007_trials")]

    operations = [
        migrations.AddField(
            "trial", "former_policy_other", models.CharField(blank=True, max_length=40, default=""), False
        ),
        migrations.AddField("trial", "former_knobs_other", models.JSONField(blank=True, default=dict)),
        migrations.AddField(
            "trial",
            "other",
            models.ForeignKey(
                blank=True,
                help_text="For a trial by sites: a service with the same model at other sites. Empty: one service by turns.",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="pools.service",
            ),
        ),
        migrations.AddField(
            "trialblock",
            "service",
            models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="pools.service"
            ),
        ),
        migrations.RunSQL(SERVICES_SQL, migrations.RunSQL.noop),
        migrations.AlterField(
            "trialblock",
            "service",
            models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="pools.service"),
        ),
        migrations.AddConstraint(
            "trial",
            models.UniqueConstraint(
                condition=Q(state__in=["planned", "running"]), fields=["other"], name="trial_one_at_a_time_other"
            ),
        ),
        migrations.AddConstraint(
            "trial",
            models.CheckConstraint(condition=Q(other=None) | ~Q(other=F("service")), name="trial_of_two_services"),
        ),
    ]
