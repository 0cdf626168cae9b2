"""The PUE, tariff, GPU-hour rate and embodied factor that are valid at a site at a moment, and whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from core.accounting.embodied import embodied_g
from core.accounting.tariffs import TariffTerms
from core.units import US_PER_S, nano_per_gpu_us, nano_per_uj
from pools.models import Site
from telemetry.models import EmbodiedFactor, GpuRate, Pue, Tariff
from telemetry.models.rates import Version

# What is valid where nobody entered anything; GPUs have no default rate, and electricity no default price.
DEFAULT_EMBODIED = EmbodiedFactor(
    gpu_kg=273.0,
    server_kg=5_700.0,
    gpus_per_server=8,
    lifespan_years=3.0,
    source="EcoLogits: 273 kgCO2e per GPU, 5,700 kgCO2e per server of eight, over three years",
    version="2025",
)
SITE_PUE_SOURCE = "the site's own field; its default is Uptime Institute's mean"
SITE_PUE_VERSION = "2025"

V = TypeVar("V", bound=Version)


@dataclass(frozen=True, slots=True)
class InForce:
    """The rates that are valid at one moment. `sources` names each by kind: it is what a settled window remembers."""

    pue: float
    terms: TariffTerms | None
    rates: Mapping[str, float]  # by GPU type, in the site's currency for an hour
    factors: Mapping[str, EmbodiedFactor]  # by GPU type; "" is any other's
    sources: Mapping[str, Any]

    def cost_nano_per_uj(self, at_s: float) -> float | None:
        """Returns the cost of a metered microjoule in billionths of the currency; None: no tariff is known."""
        return None if self.terms is None else nano_per_uj(self.terms.price_at(at_s), self.pue)

    def rental_nano_per_us(self, gpu_type: str) -> float | None:
        rate = self.rates.get(gpu_type)
        return None if rate is None else nano_per_gpu_us(rate)

    def embodied_ug_per_us(self, gpu_type: str) -> float:
        """Returns SCI's M of one GPU for a microsecond, in micrograms."""
        factor = self.factors.get(gpu_type, self.factors[""])
        return embodied_g(factor.total_kg, 1.0 / US_PER_S, factor.lifespan_years) * 1e6


@dataclass(frozen=True, slots=True)
class Rates:
    """All versions of a site's, read once."""

    site: Site
    pues: tuple[Pue, ...]
    tariffs: tuple[Tariff, ...]
    gpu_rates: tuple[GpuRate, ...]
    factors: tuple[EmbodiedFactor, ...]

    @classmethod
    def of(cls, site: Site) -> Rates:
        of_site = GpuRate.objects.filter(site=site) | GpuRate.objects.filter(site=None, currency=site.currency)
        tariffs = tuple(Tariff.objects.filter(site=site).select_related("site"))
        return cls(
            site, tuple(Pue.objects.filter(site=site)), tariffs, tuple(of_site), tuple(EmbodiedFactor.objects.all())
        )

    def pue_at(self, at: datetime) -> float:
        found = _valid_at(self.pues, at)
        return found.value if found else self.site.pue

    def at(self, at: datetime) -> InForce:
        pue, tariff = _valid_at(self.pues, at), _valid_at(self.tariffs, at)
        rates: dict[str, GpuRate] = {}
        for gpu_type in {rate.gpu_type for rate in self.gpu_rates}:
            # A site's own rate goes before one for all sites.
            for own in (False, True):
                rows = (r for r in self.gpu_rates if r.gpu_type == gpu_type and (r.site_id is not None) == own)
                if (found := _valid_at(rows, at)) is not None:
                    rates[gpu_type] = found
        factors = {"": DEFAULT_EMBODIED}
        for gpu_type in {factor.gpu_type for factor in self.factors}:
            if (factor := _valid_at((f for f in self.factors if f.gpu_type == gpu_type), at)) is not None:
                factors[gpu_type] = factor
        return InForce(
            pue=pue.value if pue else self.site.pue,
            terms=tariff.terms() if tariff else None,
            rates={gpu_type: rate.rate_per_gpu_hour for gpu_type, rate in rates.items()},
            factors=factors,
            sources={
                "pue": _named(pue) if pue else [None, self.site.pue, SITE_PUE_SOURCE, SITE_PUE_VERSION],
                "tariff": _named(tariff) if tariff else None,
                "gpu_rates": {gpu_type: _named(rate) for gpu_type, rate in sorted(rates.items())},
                "embodied": {gpu_type: _named(factor) for gpu_type, factor in sorted(factors.items())},
            },
        )


def _valid_at(rows: Iterable[V], at: datetime) -> V | None:
    """Returns the row valid at `at` that began last, and of these the one entered last."""
    found = [row for row in rows if row.valid_from <= at and (row.valid_to is None or at < row.valid_to)]
    return max(found, key=lambda row: (row.valid_from, row.pk), default=None)


def _named(row: Pue | Tariff | GpuRate | EmbodiedFactor) -> list[Any]:
    """Returns a row as a settlement remembers it: its id, what it says, and whose figure it is."""
    if isinstance(row, Pue):
        figure = row.value
    elif isinstance(row, Tariff):
        figure = row.price_per_kwh
    else:
        figure = row.rate_per_gpu_hour if isinstance(row, GpuRate) else row.total_kg
    return [row.pk, figure, row.source, row.version]
