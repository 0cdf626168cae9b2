"""Shows at an engine's /metrics what it sent and took, and how long it waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

_EXPOSED_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_COUNTERS = {
    "sent_bytes": ("greenserve_kv_sent_bytes", "Bytes of KV caches sent to other engines."),
    "received_bytes": ("greenserve_kv_received_bytes", "Bytes of KV caches loaded that other engines sent."),
    "unsent_blocks": ("greenserve_kv_unsent_blocks", "KV blocks for other engines that did not get there."),
    "missing_blocks": ("greenserve_kv_missing_blocks", "KV blocks that did not come, and were computed again."),
    "incomplete": ("greenserve_kv_incomplete_transfers", "Second parts of which not all of the KV cache came."),
}


@dataclass
class TransferStats(KVConnectorStats):
    """Figures of one interval: sums, and `exposed_s`, a list with the wait of each second part for its cache."""

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data: dict[str, Any] = {**dict.fromkeys(_COUNTERS, 0), "exposed_s": []}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] += value
        return self

    def reduce(self) -> dict[str, int | float]:
        waits = self.data["exposed_s"]
        mean_ms = 1000.0 * sum(waits) / len(waits) if waits else 0.0
        return {**{name: self.data[name] for name in _COUNTERS}, "second parts": len(waits), "mean wait, ms": mean_ms}

    def is_empty(self) -> bool:
        return not any(self.data.values())


class TransferMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine)
        self._counters = {
            name: create_metric_per_engine(
                metric_types[Counter](name=metric, documentation=text, labelnames=labelnames), per_engine
            )
            for name, (metric, text) in _COUNTERS.items()
        }
        exposed = metric_types[Histogram](
            name="greenserve_kv_exposed_seconds",
            documentation="Time that a second part waited for its KV cache.",
            buckets=_EXPOSED_S,
            labelnames=labelnames,
        )
        self._exposed = create_metric_per_engine(exposed, per_engine)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, counter in self._counters.items():
            counter[engine_idx].inc(transfer_stats_data[name])
        for wait_s in transfer_stats_data["exposed_s"]:
            self._exposed[engine_idx].observe(wait_s)
