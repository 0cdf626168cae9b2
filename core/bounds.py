"""Bounds of each quantity, by the name of its field, which ends with its unit.

A value beyond is a slip of the keyboard or an attempt to stop others: plans would go by it. Forms, REST, imports,
fleets' files, policies' settings and scenarios all look here. Where a field has narrower limits, those come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Bound(NamedTuple):
    """Both ends are possible values."""

    least: float
    most: float

    def fault(self, value: float) -> str:
        """Says what the value must be, where it is not; else empty. NaN never is."""
        if self.least <= value <= self.most:
            return ""
        return f"must be at least {self.least:,g}" if value < self.least else f"must be at most {self.most:,g}"


DURATION = Bound(0.0, 31 * 86_400.0)
_TINY = Bound(0.0, 32_767.0)
_COUNT = Bound(0.0, 1_000_000.0)
_LATENCY = Bound(0.0, 86_400.0)
_TOKENS = Bound(0.0, 1e9)
PRICE_PER_KWH = Bound(-1e6, 1e6)  # in any currency: 1 kWh is 2,500 VND, and 100 times that on some days
PUE = Bound(1.0, 10.0)  # the worst that are reported are about 3
G_PER_KWH = Bound(-20_000.0, 20_000.0)  # the dirtiest plants emit about 2,000; marginal rates go below zero
_YEARLY_KWH = Bound(0.0, 1e12)

# Fields by their whole name, those of one table alone as table.name.
_BY_NAME: Mapping[str, Bound] = {
    "pue": PUE,
    "pue.value": PUE,
    "power_cap_w": Bound(0.0, 1e10),  # of a site
    "latitude": Bound(-90.0, 90.0),
    "longitude": Bound(-180.0, 180.0),
    "tdp_w": Bound(0.0, 20_000.0),  # of one GPU; a superchip has 2,700
    "idle_w": Bound(0.0, 20_000.0),
    "max_rps": Bound(0.0, 100_000.0),  # of one instance
    "watts": Bound(0.0, 1e6),
    "batch": _COUNT,
    "requests_per_minute": Bound(1.0, 1e12),  # that a tenant or key may send
    "tokens_per_minute": Bound(1.0, 1e12),
    "concurrent_requests": Bound(1.0, 1e6),
    "budget.tokens": Bound(1.0, 1e15),  # of a month
    "gateway_connections": Bound(1.0, 1e6),  # of a gateway process, as the next ones
    "gateway_connections_per_key": Bound(1.0, 1e6),
    "gateway_unkeyed": Bound(1.0, 1e6),
    "gateway_unkeyed_per_address": Bound(1.0, 1e6),
    "gateway_unkeyed_per_s": Bound(1.0, 1e6),
    "gateway_heads_mib": Bound(1.0, 1e6),
    "gateway_held_mib": Bound(16.0, 1e6),
    "percentile": Bound(0.0, 100.0),
    "tp": Bound(1.0, 128.0),
    "index": _TINY,
    "rank": _TINY,
    "gpu_slices": Bound(1.0, 8.0),
    "warm": Bound(0.0, 10_000.0),
    "service.weight": Bound(0.001, 1000.0),  # beside other services, where GPUs are scarce
    "min_gpus": _COUNT,
    "max_loras": Bound(1.0, 1024.0),
    "adapter.rank": Bound(1.0, 512.0),  # the highest that vLLM takes
    "max_gpus": _COUNT,
    "max_model_len": Bound(1.0, 1e9),
    "input_min": _TOKENS,
    "input_max": _TOKENS,
    "output_min": _TOKENS,
    "output_max": _TOKENS,
    "objective_s": _LATENCY,
    "ttft_s": _LATENCY,
    "tpot_s": _LATENCY,
    "e2e_s": _LATENCY,
    "itl_limit_s": _LATENCY,
    "tbt_s": _LATENCY,
    "max_wait_s": _LATENCY,
    "refresh_s": Bound(1.0, 31 * 86_400.0),
    "duration_s": Bound(0.0, 1e9),  # of a scenario
    "memory_gb": Bound(0.0, 100_000.0),
    "gpus_per_server": Bound(1.0, 128.0),
    "lifespan_years": Bound(0.001, 100.0),
    "gpu_kg": Bound(0.0, 100_000.0),
    "server_kg": Bound(0.0, 1e6),
    "carbon_kg": Bound(0.0, 999_999_999_999.99),  # as many digits as are kept
    "amount": Bound(0.0, 999_999_999_999.99),
    "vintage_year": Bound(1990.0, 2100.0),
}
# All others by their unit; longer endings before shorter ones.
_BY_UNIT: Mapping[str, Bound] = {
    "_threshold_s": _LATENCY,
    "_g_per_kwh": G_PER_KWH,
    "_per_gpu_hour": Bound(0.0, 1e7),
    "_per_kwh": PRICE_PER_KWH,
    "_per_kw": Bound(0.0, 1e9),
    "_gb_per_s": Bound(0.0, 1e6),
    "_tokens_per_s": Bound(0.0, 1e9),
    "_tflops": Bound(0.0, 1e6),
    "_per_hour": _COUNT,
    "_requests": _COUNT,
    "_tokens": _TOKENS,
    "_rps": _COUNT,
    "_mhz": Bound(0.0, 10_000.0),
    "_kwh": _YEARLY_KWH,
    "_w": Bound(0.0, 1e6),
    "_s": DURATION,
}


def of(name: str, table: str = "") -> Bound | None:
    """Returns the bound of a field of a table, or of a setting; None: its name says no quantity."""
    found = _BY_NAME.get(f"{table}.{name}") or _BY_NAME.get(name)
    if found is not None:
        return found
    for unit, bound in _BY_UNIT.items():
        head = f"_{name}".removesuffix(unit)
        if head != f"_{name}" and not head.endswith("_per"):  # bytes_per_s is no time
            return bound
    return None
