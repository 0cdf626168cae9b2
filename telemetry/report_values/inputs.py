"""Inputs of a report besides the meters: each rate and factor, whose it is, and when it was valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .contracts import Contract

PUE, TARIFF, GPU_RATE, EMBODIED, INTENSITY = "PUE", "tariff", "GPU-hour rate", "embodied carbon", "carbon intensity"
CONTRACT, RESERVED = "contract for electricity", "reserved shares"


@dataclass(frozen=True, slots=True)
class ReportInput:
    """A figure that values were worked out with. `used_from_s`, `used_to_s`: the time of the period that it valued.

    `valid_from_s`, `valid_to_s`: from when to when it holds by whoever entered it; None: from always, for ever.
    """

    kind: str
    site: str
    value: str  # with its unit
    source: str
    version: str = ""
    used_from_s: int | None = None
    used_to_s: int | None = None
    valid_from_s: int | None = None
    valid_to_s: int | None = None
    quality: str = ""


@dataclass(frozen=True, slots=True)
class SyntheticSpan:
    """Simulated nodes metered this at a site in this time: no machine used it."""

    site: str
    start_s: int
    end_s: int
    gpus: int
    energy_uj: int


@dataclass(frozen=True, slots=True)
class FactorUse:
    """Energy at a site's GPUs that intensities of one kind valued: `direct`, `lifecycle`, or empty: not declared."""

    site: str
    factor: str
    energy_uj: int


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """All inputs of a report. `allocations`: by service, the share that is reserved for each tenant, as a decimal.

    `factors` has nothing in reports of before it was kept.
    """

    rates: tuple[ReportInput, ...] = ()
    allocations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    synthetic: tuple[SyntheticSpan, ...] = ()
    factors: tuple[FactorUse, ...] = ()

    def rows(self, contracts: tuple[Contract, ...]) -> Iterator[ReportInput]:
        """Yields all inputs for a table: rates and factors, contracts, reserved shares."""
        yield from self.rates
        for one in contracts:
            yield ReportInput(
                kind=CONTRACT,
                site=one.site,
                value=f"{one.factor_g_per_kwh} gCO2e/kWh{one.words}",
                source=one.source,
                version=one.kind,
                valid_from_s=one.start_s,
                valid_to_s=one.end_s,
            )
        for service, shares in sorted(self.allocations.items()):
            words = ", ".join(f"{tenant} {share}" for tenant, share in sorted(shares.items()))
            yield ReportInput(RESERVED, "", f"{service}: {words}", "the service's tenant_weights")
