"""What a GPU type does at 4 bit becomes a figure of its data sheet; until now its name told that it can."""

from django.db import migrations, models
from django.db.models import Q

_NAMES = ("B200", "RTX-PRO-6000")


def fill(apps, editor):
    """Gives the types that were planned with units for 4 bit a figure: twice that at 8 bit, as assumed."""
    gpu_type = apps.get_model("pools", "GpuType")
    named = Q()
    for name in _NAMES:
        named |= Q(name__startswith=name)
    for row in gpu_type.objects.filter(named, fp8_tflops__gt=0):
        row.fp4_tflops = 2.0 * row.fp8_tflops
        row.assumed = [*row.assumed, "fp4_tflops"]
        row.save(update_fields=["fp4_tflops", "assumed"])


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0011_newest_engine"),
    ]

    operations = [
        migrations.AddField(
            model_name="gputype",
            name="fp4_tflops",
            field=models.FloatField(blank=True, help_text="Dense, at 4 bit; empty: it has no such units.", null=True),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
