"""The sums of energy entries, made from entries that no posting wrote."""

from __future__ import annotations

from django.db import connection, transaction

from telemetry.models import EnergyRollup, GpuEnergy, SiteEnergy
from telemetry.models.rollups import STEPS_S
from telemetry.storage.sql import gpu_energy

ROLL_UP_ENTRIES = """
INSERT INTO telemetry_energyrollup
    (step_s, start_at, site_id, pool_id, kind, energy_uj, gpu_us, carbon_gco2e, unknown_uj, until)
SELECT {step_s}, to_timestamp(floor(extract(epoch FROM start_at) / {step_s}) * {step_s}), site_id, pool_id, kind,
       sum(energy_uj), sum(gpu_us), coalesce(sum(carbon_gco2e), 0.0),
       coalesce(sum(energy_uj) FILTER (WHERE carbon_gco2e IS NULL), 0), max(end_at)
FROM telemetry_energyentry GROUP BY 1, 2, 3, 4, 5
"""


def roll_up() -> None:
    """Makes all sums of entries from the entries, in the place of those that are there."""
    # In the order in which a posting comes to them: what sites add up to follows what their pools do.
    sums = [model._meta.db_table for model in (GpuEnergy, EnergyRollup, SiteEnergy)]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {', '.join(sums)} IN SHARE ROW EXCLUSIVE MODE")
        for table in sums:
            cursor.execute(f"DELETE FROM {table}")
        for step_s in STEPS_S:
            cursor.execute(ROLL_UP_ENTRIES.format(step_s=step_s))
        cursor.execute(gpu_energy.FILL)
