"""Control modes keep the policy in force: where decisions did not act, only gateways went by it until now."""

from __future__ import annotations

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def _forwards(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    """Clocks of these services are at the top, and gateways go by the policy that is configured: so it stays."""
    for row in apps.get_model("scheduler", "ServiceMode").objects.exclude(mode="act").select_related("service"):
        row.gateways_only = True
        row.save(update_fields=["gateways_only"])
        row.service.acting_policy, row.service.acting_knobs = row.service.policy, row.service.knobs
        row.service.save(update_fields=["acting_policy", "acting_knobs"])


class Migration(migrations.Migration):
    dependencies = [("pools", "0006_policy_in_force"), ("scheduler", "0003_policy_names")]
    operations = [
        migrations.AddField(
            model_name="servicemode",
            name="gateways_only",
            field=models.BooleanField(
                default=False,
                help_text="The loops of the policy in force have not acted yet: its clocks stay at the top, its plans "
                "wait.",
            ),
        ),
        migrations.AlterField(
            model_name="servicemode",
            name="mode",
            field=models.CharField(
                choices=[
                    ("act", "act: decisions are carried out"),
                    (
                        "advise",
                        "advise: the policy in force goes on, and what the configured one would do is shown beside it",
                    ),
                    ("approve", "approve: plans of the configured policy wait until a person approves them"),
                ],
                default="act",
                max_length=8,
            ),
        ),
        migrations.RunPython(_forwards, migrations.RunPython.noop),
    ]
