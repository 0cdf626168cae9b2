"""Names of the Prometheus metrics that engines and the DCGM exporter serve, newest first where a name has changed.

The agent, which meters a node, and `greenserve observe`, which reads a fleet that runs without GreenServe, both go by
these. docs/observe.md names the versions and files of the engines that the names are from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineNames:
    """Names of one engine. A field is empty where the engine has no such metric.

    `requests`, `prompt_tokens`, `output_tokens` count what has ended, was computed and was generated. `cached_tokens`
    of `queried_tokens` were found in the prefix cache. The other fields but the gauges are histograms, without the
    suffix of their samples: `tpot` has a request's mean gap, `itl` each gap.
    """

    engine: str
    prefix: str
    running: Names
    waiting: Names
    requests: Names
    prompt_tokens: Names
    output_tokens: Names
    cached_tokens: Names
    queried_tokens: Names
    prompt_lengths: Names
    output_lengths: Names
    ttft: Names
    tpot: Names
    itl: Names
    e2e: Names

    @property
    def gauges(self) -> frozenset[str]:
        return frozenset((*self.running, *self.waiting))

    @property
    def all(self) -> frozenset[str]:
        """Names of the metrics, histograms without the suffix of their samples."""
        groups = (getattr(self, item.name) for item in fields(self) if item.name not in ("engine", "prefix"))
        return frozenset(name for names in groups for name in names)


VLLM_KV_USAGE: Names = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
VLLM = EngineNames(
    engine="vLLM",
    prefix="vllm:",
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting",),
    requests=("vllm:request_success_total", "vllm:request_success"),
    prompt_tokens=("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    output_tokens=("vllm:generation_tokens_total", "vllm:generation_tokens"),
    cached_tokens=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    queried_tokens=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    prompt_lengths=("vllm:request_prompt_tokens",),
    output_lengths=("vllm:request_generation_tokens",),
    ttft=("vllm:time_to_first_token_seconds",),
    tpot=("vllm:request_time_per_output_token_seconds",),
    itl=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    e2e=("vllm:e2e_request_latency_seconds",),
)
SGLANG = EngineNames(
    engine="SGLang",
    prefix="sglang:",
    running=("sglang:num_running_reqs",),
    waiting=("sglang:num_queue_reqs",),
    requests=("sglang:num_requests_total",),
    prompt_tokens=("sglang:prompt_tokens_total",),
    output_tokens=("sglang:generation_tokens_total",),
    cached_tokens=("sglang:cached_tokens_total",),
    queried_tokens=("sglang:prompt_tokens_total",),
    prompt_lengths=("sglang:prompt_tokens_histogram",),
    output_lengths=("sglang:generation_tokens_histogram",),
    ttft=("sglang:time_to_first_token_seconds",),
    tpot=("sglang:request_time_per_output_token_seconds",),
    itl=("sglang:inter_token_latency_seconds",),
    e2e=("sglang:e2e_request_latency_seconds",),
)
TENSORRT_LLM = EngineNames(
    engine="TensorRT-LLM",
    prefix="trtllm_",
    running=("trtllm_num_requests_running",),
    waiting=("trtllm_num_requests_waiting",),
    requests=("trtllm_request_success_total",),
    prompt_tokens=("trtllm_prompt_tokens_total",),
    output_tokens=("trtllm_generation_tokens_total",),
    cached_tokens=("trtllm_prompt_cached_tokens_total",),
    queried_tokens=("trtllm_prompt_tokens_total",),
    prompt_lengths=(),
    output_lengths=(),
    ttft=("trtllm_time_to_first_token_seconds",),
    tpot=("trtllm_time_per_output_token_seconds",),
    itl=(),
    e2e=("trtllm_e2e_request_latency_seconds",),
)
ENGINES = (VLLM, SGLANG, TENSORRT_LLM)

# The DCGM exporter's: energy in mJ since the driver was loaded, power in W, clocks in MHz, memory in MiB, use in %.
DCGM_ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
DCGM_POWER = "DCGM_FI_DEV_POWER_USAGE"
DCGM_CLOCK = "DCGM_FI_DEV_SM_CLOCK"
DCGM_MEMORY_CLOCK = "DCGM_FI_DEV_MEM_CLOCK"
DCGM_BUSY = "DCGM_FI_DEV_GPU_UTIL"
DCGM_TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
DCGM_MEMORY = "DCGM_FI_DEV_FB_USED"

# Metrics that say how something stands, and not how much of it there has been.
GAUGES: frozenset[str] = frozenset(
    (DCGM_POWER, DCGM_CLOCK, DCGM_MEMORY_CLOCK, DCGM_BUSY, DCGM_TEMPERATURE, DCGM_MEMORY)
).union(*(names.gauges for names in ENGINES))
BY_ENGINE: Mapping[str, EngineNames] = MappingProxyType({names.engine: names for names in ENGINES})
