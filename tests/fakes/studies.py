"""Scenarios of studies that take a moment to simulate."""

from __future__ import annotations

from typing import Any


def tiny(**more: Any) -> dict[str, Any]:
    """One or two instances, some dozens of requests."""
    return {
        "name": "tiny",
        "fleet": [{"name": "node", "count": 2, "model": "Llama2-13B", "gpu": "A100-80GB", "tp": 1}],
        "workload": {"generate": "poisson", "rate_rps": 3, "duration_s": 40, "prompt_tokens": 300, "output_tokens": 30},
        "sites": {"site": {"carbon_g_per_kwh": [300, 200], "usd_per_kwh": 0.1, "gpus": {"A100-80GB": 2}}},
        "slo": {"ttft_s": 0.5, "tpot_s": 0.03},
    } | more
