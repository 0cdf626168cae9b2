"""The read side of telemetry: frames for charts, numbers and the pool table. Each says how many queries it makes."""

from .energy import energy, power, sites_now, totals
from .gpu_series import gpu_series, meter_gaps
from .intensity import feeds, intensities
from .ledger_sums import ledger_sums
from .newest_samples import PowerNow, newest_sample_s, power_now
from .pool_table import first_pools, measured, pool_rows, pool_table, powered
from .service_level import fairness, slo, tenant_fairness
from .time_steps import readable

__all__ = [
    "PowerNow",
    "energy",
    "fairness",
    "feeds",
    "first_pools",
    "gpu_series",
    "intensities",
    "ledger_sums",
    "measured",
    "meter_gaps",
    "newest_sample_s",
    "pool_rows",
    "pool_table",
    "power",
    "power_now",
    "powered",
    "readable",
    "sites_now",
    "slo",
    "tenant_fairness",
    "totals",
]
