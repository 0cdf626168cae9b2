"""New services get `greenserve`. Each stored one names its policy, and keeps it."""

from __future__ import annotations

from django.db import migrations, models

import core.policy.presets


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0012_gpu_types_at_4_bit"),
    ]

    operations = [
        migrations.AlterField(
            model_name="service",
            name="policy",
            field=models.CharField(
                choices=core.policy.presets.choices,
                default="greenserve",
                help_text="A preset: the policy of a paper, or GreenServe's own.",
                max_length=20,
            ),
        ),
    ]
