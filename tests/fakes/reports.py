"""Made-up lines of a report, for tests and benchmarks. Every figure is from a seed; nothing is a measurement."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Sequence
from dataclasses import fields
from operator import attrgetter

import polars

from telemetry.report_values.basis import Basis, DemandCharge, MeterBasis, PoolBasis, SiteBasis
from telemetry.report_values.contracts import Contract
from telemetry.report_values.line_blocks import MARKET, MARKET_MISSING, SCHEMA, Block
from telemetry.report_values.lines import ReportLine, SloCount
from telemetry.report_values.report_request import ReportRequest
from telemetry.reports.writers.focus import FocusWriter

HOUR_S = 3_600
SITES = (
    ("location-1", "Ashburn", "USD", 410.0),
    ("location-2", "Chicago", "USD", 280.0),
    ("berlin", "Berlin", "EUR", 350.0),
)
TENANTS = ("acme", "birch", "cobalt", "dune", "elm")
CLASSES = ("SS", "SL", "LS", "LL")
SERVICE, MODEL = "llama3-70b", "Llama3-70B"
_row = attrgetter(*(field.name for field in fields(ReportLine)))


def lines(
    request: ReportRequest, tenants: Sequence[str] = TENANTS, seed: int = 1, hours: int | None = None
) -> Iterator[ReportLine]:
    """By hour, site and pool: a line for each tenant, idle and transition; unattributed, of no pool, at the end."""
    rng = random.Random(seed)
    period = request.span()
    starts = range(period.start_s, period.end_s, HOUR_S)
    for start_s in starts[:hours] if hours else starts:
        for site, _, currency, intensity in SITES:
            for name in CLASSES:
                pool = f"{SERVICE}/{site}/{name}"
                for kind, tenant in (("idle", None), *(("serving", t) for t in tenants), ("transition", None)):
                    service = None if tenant is None else SERVICE
                    yield _line(rng, start_s, site, currency, intensity, kind, tenant, service, pool, MODEL)
            yield _line(rng, start_s, site, currency, intensity, "unattributed", None, None, None, None)


def blocks(found: Sequence[ReportLine], rows: int = 1_000) -> Iterator[Block]:
    """As they come from the ledger: whole hours, some of them together."""
    block: list[ReportLine] = []
    for line in found:
        if len(block) >= rows and line.start_s != block[-1].start_s:
            yield Block([_row(each) for each in block], schema=SCHEMA, orient="row")
            block = []
        block.append(line)
    if block:
        yield Block([_row(each) for each in block], schema=SCHEMA, orient="row")


def _line(rng, start_s, site, currency, intensity, kind, tenant, service, pool, model) -> ReportLine:
    energy_uj = rng.randrange(10**8, 10**11)
    facility_uj = energy_uj * 6 // 5
    tokens = rng.randrange(1_000, 90_000) if kind == "serving" else 0
    return ReportLine(
        start_s=start_s,
        end_s=start_s + HOUR_S,
        site=site,
        kind=kind,
        tenant=tenant,
        service=service,
        pool=pool,
        model=model,
        currency=currency,
        energy_uj=energy_uj,
        facility_uj=facility_uj,
        gpu_us=energy_uj // 250,
        location_ug=round(facility_uj * intensity / 3.6e6),
        location_missing_uj=0,
        embodied_ug=energy_uj // 80_000,
        embodied_missing_us=0,
        electricity_nano=facility_uj // 32_000,
        electricity_missing_uj=0,
        rental_nano=energy_uj // 2_000,
        rental_missing_us=0,
        requests=tokens // 300,
        prompt_tokens=tokens * 2,
        output_tokens=tokens,
    )


def basis(request: ReportRequest, found: Sequence[ReportLine], **changes: object) -> Basis:
    """A basis that fits these lines: two GPUs at each site, whose counters have moved what the lines say."""
    period = request.span()
    by_site = {site: [line for line in found if line.site == site] for site, *_ in SITES}
    meters = []
    for site, own in by_site.items():
        energy_uj = sum(line.energy_uj for line in own)
        for n, part_uj in enumerate((energy_uj // 3, energy_uj - energy_uj // 3)):
            meters.append(MeterBasis(f"GPU-{site}-{n}", site, period.start_s, period.end_s, part_uj, part_uj, part_uj))
    given: dict[str, object] = {
        "number": 12,
        "revision": 1,
        "ledger_version": 345,
        "made_s": period.end_s + 7_200,
        "organisation": "Example Compute Ltd",
        "product": "GreenServe 0.1.0",
        "settled_until_s": period.end_s,
        "sites": {
            site: SiteBasis(rank + 1, label, currency, rank, True, sum(line.facility_uj for line in by_site[site]))
            for rank, (site, label, currency, _) in enumerate(SITES)
        },
        "pools": {
            f"{i}": PoolBasis(f"{SERVICE}/{site}/{name}", site, SERVICE, MODEL)
            for i, (site, name) in enumerate((site, name) for site, *_ in SITES for name in CLASSES)
        },
        "tenants": {f"{i}": (name, name.title()) for i, name in enumerate(TENANTS)},
        "contracts": contracts(request),
        "slo": tuple(
            SloCount(site, tenant, SERVICE, f"{SERVICE}/{site}/{name}", MODEL, 900, 880, 860 - 7 * i, 0)
            for i, tenant in enumerate(TENANTS)
            for site, *_ in SITES
            for name in CLASSES
        ),
        "meters": tuple(meters),
    }
    return Basis(**{**given, **changes})


def contracts(request: ReportRequest) -> tuple[Contract, ...]:
    period = request.span()
    whole = (period.start_s, period.end_s)
    return (
        Contract("location-1", "ppa", "11", 40_000, *whole, "Wind farm A, contract 7"),
        Contract("location-1", "supplier", "372.5", None, *whole, "Utility's disclosure 2025"),
        Contract("location-2", "supplier", "301", None, *whole, "Utility's disclosure 2025"),
        Contract("berlin", "certificate", "0", 100_000, *whole, "Guarantees of origin 2026"),
    )


def demand_charge() -> DemandCharge:
    """Berlin's, of its own October: some of that is September in UTC."""
    october = ReportRequest("2026-10", zone="Europe/Berlin").span()
    return DemandCharge("berlin", "2026-10", october.start_s, october.end_s, 41_250.0, 512_500_000_000, "EUR")


def focus_csv(found: Sequence[ReportLine], basis: Basis, version: str) -> bytes:
    """The lines as FOCUS. Market-based emissions are 7 micrograms each, and not known in Berlin."""
    out = io.BytesIO()
    unknown = polars.col("site") == "berlin"
    market = (polars.lit(7).alias(MARKET), unknown.cast(polars.Int64).alias(MARKET_MISSING))
    FocusWriter(basis, version).write((block.with_columns(market) for block in blocks(found)), out)
    return out.getvalue()
