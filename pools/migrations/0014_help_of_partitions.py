"""Services' forms say what classes of one's own need."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0013_default_policy"),
    ]

    operations = [
        migrations.AlterField(
            model_name="service",
            name="partition",
            field=models.ForeignKey(
                help_text=(
                    "In force; the carbon epoch's. The policy may name another: greenserve serves all requests as one "
                    "class. For classes of your own set the knob partition=NAME."
                ),
                on_delete=django.db.models.deletion.PROTECT,
                related_name="active_services",
                to="pools.partition",
            ),
        ),
    ]
