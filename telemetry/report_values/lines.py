"""A report's lines: they add up to the meters, as whole numbers, so that sums are exact in any order."""

from __future__ import annotations

from dataclasses import dataclass

DIMENSIONS = ("site", "tenant", "service", "pool", "model", "adapter")


@dataclass(frozen=True, slots=True)
class ReportLine:
    """The use of a site's GPUs within a UTC hour for one kind, tenant, service, pool and adapter. None: nobody's.

    A row of a block (`line_blocks.SCHEMA`), which is how lines come and go: there may be millions.

    What is not known for a part of the line is left out of the amount, and how large that part is stands beside it, in
    joules or GPU time: a figure is whole only where nothing is missing.

    Attributes:
        start_s, end_s: Unix seconds of the charge period, the hour cut to the report's period.
        energy_uj: Metered at the GPUs, in microjoules.
        facility_uj: The same at the site's own meter (times PUE).
        gpu_us: GPU time, in microseconds of one GPU.
        adapter: The LoRA adapter that the requests asked for; None: the service's model itself.
        location_ug: Location-based Scope 2, in micrograms CO2e.
        embodied_ug: Share of the hardware's manufacture, in micrograms CO2e.
        electricity_nano, rental_nano: Electricity and GPU-hours, in billionths of the currency.
        host_uj: Metered of the hosts beside the GPUs, in microjoules; no other amount has it.
        host_known_uj: The part of `energy_uj` whose host was metered.
    """

    start_s: int
    end_s: int
    site: str
    kind: str
    tenant: str | None
    service: str | None
    pool: str | None
    model: str | None
    currency: str
    energy_uj: int
    facility_uj: int
    gpu_us: int
    location_ug: int
    location_missing_uj: int
    embodied_ug: int
    embodied_missing_us: int
    electricity_nano: int
    electricity_missing_uj: int
    rental_nano: int
    rental_missing_us: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    host_uj: int = 0
    host_known_uj: int = 0
    adapter: str | None = None

    @property
    def cost_nano(self) -> int | None:
        """Electricity and GPU-hours; None where a part of it is not known."""
        if self.electricity_missing_uj or self.rental_missing_us:
            return None
        return self.electricity_nano + self.rental_nano


@dataclass(frozen=True, slots=True)
class SloCount:
    """Requests that one tenant sent to one pool in the period, by an adapter's name or by none: judged, and within.

    `requests` of them came, `judged` have an objective to judge them by, and `met` of these kept it.

    `without_tokens`: how many were served without anybody counting their tokens. `worked`: how many an engine may have
    worked on, which are all but those that were refused.
    """

    site: str | None
    tenant: str | None
    service: str | None
    pool: str | None
    model: str | None
    requests: int
    judged: int
    met: int
    without_tokens: int
    worked: int = 0  # reports of releases that did not count it say nothing of it
    adapter: str | None = None


def decimal_text(value: int, places: int) -> str:
    """A whole number of 10**-places as a decimal without idle zeros: `decimal_text(1500, 3)` is `1.5`."""
    sign = "-" if value < 0 else ""
    whole, part = divmod(abs(value), 10**places)
    return f"{sign}{whole}.{part:0{places}d}".rstrip("0") if part else f"{sign}{whole}"


def joules(energy_uj: int) -> str:
    return decimal_text(energy_uj, 6)


def kwh(energy_uj: int) -> str:
    """To 10**-12 kWh: 1 kWh is 3.6e12 uJ, so most energies have no end as decimals. Joules are exact."""
    return decimal_text((energy_uj * 10 + 18) // 36, 12)


def gpu_hours(gpu_us: int) -> str:
    """Writes GPU time in hours, to 10**-11 h: most times have no end in hours."""
    return decimal_text((gpu_us * 1_000 + 18) // 36, 11)


def kg(carbon_ug: int) -> str:
    return decimal_text(carbon_ug, 9)


def money(cost_nano: int) -> str:
    return decimal_text(cost_nano, 9)
