"""The rates of the demo fleet. They are invented, and called so wherever a sum rests on them: no utility's tariff."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.apps import apps
from django.db import transaction

from pools.models import Gpu, Site

SOURCE = "Synthetic, for the demo: no utility's tariff and nobody's offer"
SINCE = datetime(2020, 1, 1, tzinfo=UTC)  # before anything that the demo can meter
WEEKDAYS = ["mon", "tue", "wed", "thu", "fri"]
PRICE_PER_KWH, AFTERNOON_PER_KWH, DEMAND_PER_KW = 0.08, 0.13, 12.0  # USD
RATES_PER_GPU_HOUR = {"A100-80GB": 1.3, "H100-SXM-80GB": 2.4}  # USD


@transaction.atomic
def load_rates() -> None:
    """Idempotent: sites and GPU types that have a tariff or a rate keep it."""
    # pools may not import telemetry, which stands above it.
    tariffs, rates = (apps.get_model("telemetry", name).objects for name in ("Tariff", "GpuRate"))
    named: dict[str, Any] = {"valid_from": SINCE, "source": SOURCE, "version": "demo"}
    window = {"from": "13:00", "to": "19:00", "price_per_kwh": AFTERNOON_PER_KWH, "days": WEEKDAYS}
    for site in Site.objects.filter(currency="USD", tariffs=None):
        price = {"price_per_kwh": PRICE_PER_KWH, "windows": [window], "demand_per_kw": DEMAND_PER_KW}
        tariffs.create(site=site, currency=site.currency, **price, **named)
    known = set(rates.values_list("gpu_type", flat=True))
    for gpu_type in set(Gpu.objects.values_list("gpu_type", flat=True)) & RATES_PER_GPU_HOUR.keys() - known:
        rates.create(gpu_type=gpu_type, currency="USD", rate_per_gpu_hour=RATES_PER_GPU_HOUR[gpu_type], **named)
