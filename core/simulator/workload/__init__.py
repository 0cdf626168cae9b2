"""Workloads: recorded traces and generated traffic, as streams of blocks in order of arrival."""

from core.simulator.workload.columns import merge
from core.simulator.workload.generate import Generator, azure_conv_like, generate
from core.simulator.workload.lengths import OUTPUT_QUANTILES, PROMPT_QUANTILES, QUANTILE_SHARES, Lengths, quantile_table
from core.simulator.workload.predictor import LengthPredictor, read_predictor
from core.simulator.workload.request_source import stream
from core.simulator.workload.spec import GENERATORS, Workload, read_workload
from core.simulator.workload.trace import Tally, TraceError, TraceRequest, read_azure_trace, read_trace

__all__ = [
    "GENERATORS",
    "OUTPUT_QUANTILES",
    "PROMPT_QUANTILES",
    "QUANTILE_SHARES",
    "Generator",
    "LengthPredictor",
    "Lengths",
    "Tally",
    "TraceError",
    "TraceRequest",
    "Workload",
    "azure_conv_like",
    "generate",
    "merge",
    "quantile_table",
    "read_azure_trace",
    "read_predictor",
    "read_trace",
    "read_workload",
    "stream",
]
