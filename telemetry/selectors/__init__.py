"""The read side of telemetry: frames for charts, numbers and the pool table. Each says how many queries it makes."""

from .energy import energy, feeds, newest_sample_s, sites_now, totals
from .gpus import gpu_series, meter_gaps
from .pools import pool_table
from .service_level import fairness, slo, tenant_fairness

__all__ = [
    "energy",
    "fairness",
    "feeds",
    "gpu_series",
    "meter_gaps",
    "newest_sample_s",
    "pool_table",
    "sites_now",
    "slo",
    "tenant_fairness",
    "totals",
]
