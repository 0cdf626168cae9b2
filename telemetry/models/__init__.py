from .alerts import Alert, AlertNotice, AlertSilence, AlertWatch, SloMinute
from .carbon import CarbonFeed, CarbonPoint
from .forecasts import ForecastScore, LoadPoint
from .ledger import EnergyEntry, MeterMark
from .rates import EmbodiedFactor, GpuRate, Pue, Tariff
from .reports import Instrument, Report, ReportFile, ReportSchedule
from .requests import RequestRecord
from .rollups import EnergyRollup, GpuDay, GpuHour, GpuMinute, RollupDue
from .samples import GpuSample, IngestBatch, InstanceSample
from .settlement import RequestShare, Settlement, StatementLine

__all__ = [
    "Alert",
    "AlertNotice",
    "AlertSilence",
    "AlertWatch",
    "CarbonFeed",
    "CarbonPoint",
    "EmbodiedFactor",
    "EnergyEntry",
    "EnergyRollup",
    "ForecastScore",
    "GpuDay",
    "GpuHour",
    "GpuMinute",
    "GpuRate",
    "GpuSample",
    "IngestBatch",
    "InstanceSample",
    "Instrument",
    "LoadPoint",
    "MeterMark",
    "Pue",
    "Report",
    "ReportFile",
    "ReportSchedule",
    "RequestRecord",
    "RequestShare",
    "RollupDue",
    "Settlement",
    "SloMinute",
    "StatementLine",
    "Tariff",
]
