"""Tables of what was measured, and what follows: samples, requests, the ledger, rates, alerts, reports."""

from .alerts import Alert, AlertNotice, AlertSilence, AlertWatch, SloMinute
from .budgets import Budget
from .carbon import CarbonFeed, CarbonPoint
from .dead_rows import DeadRow
from .demand import DemandSketch
from .forecasts import CarbonNetwork, ForecastScore, LearnedForecast, LoadNetwork, LoadPoint
from .host import HostEntry, HostMark, HostSample
from .instruments import Instrument, InstrumentHour
from .ledger import EnergyEntry, GpuEnergy, MeterMark
from .rates import EmbodiedFactor, GpuRate, Pue, Tariff
from .reports import Report, ReportFile, ReportSchedule
from .requests import RequestRecord
from .rollups import (
    EnergyRollup,
    EngineMinute,
    GpuDay,
    GpuHour,
    GpuMinute,
    LengthRollup,
    RollupDue,
    SiteEnergy,
    SloRollup,
    TenantRollup,
)
from .samples import GpuSample, IngestedBatches, InstanceSample
from .settlement import RequestShare, Settlement, StatementHour, StatementLine
from .synthetic import SyntheticHistory
from .weather import WeatherFeed, WeatherPoint

__all__ = [
    "Alert",
    "AlertNotice",
    "AlertSilence",
    "AlertWatch",
    "Budget",
    "CarbonFeed",
    "CarbonNetwork",
    "CarbonPoint",
    "DeadRow",
    "DemandSketch",
    "EmbodiedFactor",
    "EnergyEntry",
    "EnergyRollup",
    "EngineMinute",
    "ForecastScore",
    "GpuDay",
    "GpuEnergy",
    "GpuHour",
    "GpuMinute",
    "GpuRate",
    "GpuSample",
    "HostEntry",
    "HostMark",
    "HostSample",
    "IngestedBatches",
    "InstanceSample",
    "Instrument",
    "InstrumentHour",
    "LearnedForecast",
    "LengthRollup",
    "LoadNetwork",
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
    "SiteEnergy",
    "SloMinute",
    "SloRollup",
    "StatementHour",
    "StatementLine",
    "SyntheticHistory",
    "Tariff",
    "TenantRollup",
    "WeatherFeed",
    "WeatherPoint",
]
