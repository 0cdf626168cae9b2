from .carbon import CarbonFeed, CarbonPoint
from .ledger import EnergyEntry, MeterMark
from .requests import RequestRecord
from .samples import GpuSample, IngestBatch, InstanceSample

__all__ = [
    "CarbonFeed",
    "CarbonPoint",
    "EnergyEntry",
    "GpuSample",
    "IngestBatch",
    "InstanceSample",
    "MeterMark",
    "RequestRecord",
]
