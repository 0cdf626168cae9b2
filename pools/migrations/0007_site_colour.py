"""A site keeps its colour: those that are there keep the order that gave them theirs until now."""

from typing import Any

from django.db import migrations, models

HELP = "Place among the colours of charts, given once; other sites never move it."


def number(apps: Any, schema_editor: Any) -> None:
    sites = apps.get_model("pools", "Site").objects
    for place, pk in enumerate(sites.order_by("rank", "name").values_list("pk", flat=True)):
        sites.filter(pk=pk).update(colour=place)


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0006_policy_in_force"),
    ]

    operations = [
        migrations.AddField(
            model_name="site",
            name="colour",
            field=models.PositiveSmallIntegerField(blank=True, editable=False, null=True, help_text=HELP),
        ),
        migrations.RunPython(number, migrations.RunPython.noop),
        migrations.AlterField(
            model_name="site",
            name="colour",
            field=models.PositiveSmallIntegerField(blank=True, editable=False, help_text=HELP),
        ),
        migrations.AlterField(
            model_name="site",
            name="rank",
            field=models.PositiveSmallIntegerField(default=0, help_text="Order on pages."),
        ),
    ]
