"""FOCUS 1.4, dataset Cost and Usage (FinOps Open Cost and Usage Specification), as a stream of CSV rows.

An origin charge is what a pool's GPUs cost in a UTC hour; its rows are allocated charges: one for each tenant's part,
and for idle, transition and unattributed time. What belongs to the origin (resource, service, region, SKU) is the same
in all of its rows; who had the part stands in the Allocated columns and, flat, in the custom ones. Ratios are exact
decimals and add up to 1 in each origin charge. Costs may not be null in FOCUS: without a tariff there is no export.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from typing import IO

from .basis import Basis, DemandCharge
from .errors import BadReport
from .lines import ReportLine

METHOD_ID = "greenserve-energy-share-1"
CARBON_METHOD_ID = "ghg-scope2-average-1"
CATEGORY, SUBCATEGORY = "AI and Machine Learning", "Generative AI"
RATIO_PLACES = 12
ONE = 10**RATIO_PLACES
TOKENS, THOUSAND_TOKENS = "Tokens", "1000 Tokens"
NOBODY = "unassigned"

# Column -> (FOCUS data type, places of a decimal). Custom ones last, as the specification wants it.
COLUMNS = {
    **dict.fromkeys(("BillingAccountId", "BillingAccountName", "SubAccountId", "SubAccountName"), "String"),
    **dict.fromkeys(("HostProviderName", "InvoiceIssuerName", "ServiceProviderName"), "String"),
    **dict.fromkeys(("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"), "Date/Time"),
    **dict.fromkeys(("ChargeCategory", "ChargeClass", "ChargeFrequency", "ChargeDescription"), "String"),
    **dict.fromkeys(("ServiceCategory", "ServiceSubcategory", "ServiceName"), "String"),
    **dict.fromkeys(("RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType"), "String"),
    **dict.fromkeys(("SkuId", "SkuPriceId"), "String"),
    "Tags": "JSON",
    "BillingCurrency": "String",
    **dict.fromkeys(("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"), "Decimal"),
    "ConsumedQuantity": "Decimal",
    "ConsumedUnit": "String",
    "PricingQuantity": "Decimal",
    "PricingUnit": "String",
    **dict.fromkeys(("AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName"), "String"),
    **dict.fromkeys(("AllocatedTags", "AllocatedMethodDetails"), "JSON"),
    **dict.fromkeys(("x_EnergyJ", "x_EnergyKwh", "x_FacilityEnergyKwh", "x_GpuHours"), "Decimal"),
    **dict.fromkeys(("x_Scope2LocationKgCo2e", "x_Scope2MarketKgCo2e", "x_EmbodiedKgCo2e"), "Decimal"),
    "x_CarbonMethodId": "String",
    **dict.fromkeys(("x_EnergyKind", "x_TenantId", "x_ServiceId", "x_ModelId"), "String"),
    **dict.fromkeys(("x_PromptTokens", "x_OutputTokens"), "Decimal"),
    "x_SplitOriginId": "String",
    "x_SplitOriginCost": "Decimal",
    "x_ReportVersion": "String",
}


@dataclass(slots=True)
class FocusWriter:
    """Writes the rows of lines as they come, in their order: by hour, site and pool. Nothing is kept.

    A million rows have to be written in half a minute: what many rows share is made once, as the text that it is in the
    file, and a row is one piece of text.
    """

    basis: Basis
    rows: int = 0
    _months: dict[int, str] = field(default_factory=dict)
    _owners: dict[tuple[str, str | None], tuple[str, str]] = field(default_factory=dict)
    _parts: dict[tuple[str | None, ...], tuple[str, str]] = field(default_factory=dict)

    def write(self, lines: Iterable[tuple[ReportLine, int | None]], out: IO[str]) -> None:
        """`lines` come with their market-based micrograms. Raises BadReport where a cost is not known."""
        out.write(",".join(COLUMNS) + "\n")
        for _, group in groupby(lines, key=_origin):
            out.write(self._charge(list(group)))
        for charge in self.basis.demand:
            if charge.charge_nano:
                out.write(self._demand(charge, charge.charge_nano))

    def _charge(self, parts: Sequence[tuple[ReportLine, int | None]]) -> str:
        """The rows of one origin charge."""
        first = parts[0][0]
        costs = [_cost(line) for line, _ in parts]
        ratios = shares(costs, [line.energy_uj for line, _ in parts])
        start, end = _utc(first.start_s), _utc(first.end_s)
        before, after = self._owner(first)
        head = f"{before},{self._month(first.start_s)},{start},{end},{after},{first.currency}"
        origin = _cell(f"{first.site}/{first.pool or NOBODY}/{start}")
        tail = f"{origin},{fixed(sum(costs), 9)},{self.basis.version}\n"
        self.rows += len(parts)
        return "".join(
            [
                self._row(head, tail, line, market_ug, cost_nano, ratio)
                for (line, market_ug), cost_nano, ratio in zip(parts, costs, ratios, strict=True)
            ]
        )

    def _demand(self, charge: DemandCharge, cost_nano: int) -> str:
        """A row of its own, for a charge that nobody has a part of: it has no energy, and is not allocated."""
        self.rows += 1
        house, site = self.basis.organisation, self.basis.sites[charge.site]
        what = f"Demand charge of {charge.month} at {site.label}"
        cost, peak_kw = fixed(cost_nano, 9), fixed(round(charge.peak_w), 3)
        values = {
            **{"BillingAccountId": _slug(house), "BillingAccountName": house},
            **{"SubAccountId": charge.site, "SubAccountName": site.label},
            **dict.fromkeys(("HostProviderName", "InvoiceIssuerName", "ServiceProviderName"), house),
            **dict(zip(("BillingPeriodStart", "BillingPeriodEnd"), _month_of(charge), strict=True)),
            **{"ChargePeriodStart": _utc(charge.start_s), "ChargePeriodEnd": _utc(charge.end_s)},
            **{"ChargeCategory": "Usage", "ChargeFrequency": "Recurring", "ChargeDescription": what},
            **{"ServiceCategory": CATEGORY, "ServiceSubcategory": SUBCATEGORY, "ServiceName": "Electricity demand"},
            **{"RegionId": charge.site, "RegionName": site.label},
            **{"SkuId": "demand-charge", "SkuPriceId": f"demand-charge/{charge.site}"},
            "Tags": json.dumps({"site": charge.site}, separators=(",", ":")),
            "BillingCurrency": charge.currency,
            **dict.fromkeys(("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"), cost),
            **{"PricingQuantity": peak_kw, "PricingUnit": "kW", "ConsumedQuantity": peak_kw, "ConsumedUnit": "kW"},
            "x_ReportVersion": self.basis.version,
        }
        return ",".join(_cell(values.get(name, "")) for name in COLUMNS) + "\n"

    def _row(self, head: str, tail: str, line: ReportLine, market_ug: int | None, cost_nano: int, ratio: int) -> str:
        cost, energy_j = fixed(cost_nano, 9), fixed(line.energy_uj, 6)
        allocated, kind = self._part(line)
        if line.kind == "unattributed":  # nobody knows what it served
            consumed, own = ",,,", ","
        else:
            tokens = line.prompt_tokens + line.output_tokens
            consumed = f"{tokens},{TOKENS},{fixed(tokens, 3)},{THOUSAND_TOKENS}"
            own = f"{line.prompt_tokens},{line.output_tokens}"
        location = "" if line.location_missing_uj else fixed(line.location_ug, 9)
        market = "" if market_ug is None else fixed(market_ug, 9)
        embodied = "" if line.embodied_missing_us else fixed(line.embodied_ug, 9)
        return (
            f"{head},{cost},{cost},{cost},{cost},{consumed},{allocated},"
            f'"{{""Elements"":[{{""AllocatedRatio"":{fixed(ratio, RATIO_PLACES)},""UsageQuantity"":{energy_j},'
            f'""UsageUnit"":""Joules""}}]}}",{energy_j},{fixed((line.energy_uj * 10 + 18) // 36, 12)},'
            f"{fixed((line.facility_uj * 10 + 18) // 36, 12)},{fixed(line.gpu_us * 1_000 // 36, 11)},"
            f"{location},{market},{embodied},{kind},{own},{tail}"
        )

    def _month(self, start_s: int) -> str:
        """The ends of the UTC month, which is the billing period."""
        found = self._months.get(start_s)
        if found is None:
            month = datetime.fromtimestamp(start_s, UTC).replace(day=1, hour=0, minute=0, second=0)
            after = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
            ends = f"{_utc(round(month.timestamp()))},{_utc(round(after.timestamp()))}"
            found = self._months[start_s] = ends
        return found

    def _owner(self, line: ReportLine) -> tuple[str, str]:
        """What an origin charge gives to all of its rows: the columns before those of time, and those after."""
        found = self._owners.get((line.site, line.pool))
        if found is None:
            house = self.basis.organisation
            site = self.basis.sites[line.site]
            pool = next((pool for pool in self.basis.pools.values() if pool.name == line.pool), None)
            model = (pool.model if pool else "") or NOBODY
            sku = f"gpu-time/{model}"
            before = (_slug(house), house, line.site, site.label, house, house, house)
            after = (
                *("Usage", "", "Usage-Based", f"GPU time of {f'pool {line.pool}' if line.pool else 'no pool'}"),
                *(CATEGORY, SUBCATEGORY, (pool.service if pool else "") or "LLM inference"),
                *(line.site, site.label, line.pool or f"{line.site}/{NOBODY}"),
                *(line.pool or f"GPUs at {site.label} without a pool", "GPU pool", sku, f"{sku}/{line.site}"),
                json.dumps({"site": line.site}, separators=(",", ":")),
            )
            found = self._owners[line.site, line.pool] = ",".join(map(_cell, before)), ",".join(map(_cell, after))
        return found

    def _part(self, line: ReportLine) -> tuple[str, str]:
        """Who had this part of the origin charge: the Allocated columns, and the custom ones."""
        key = (line.site, line.kind, line.tenant, line.service, line.model)
        found = self._parts.get(key)
        if found is None:
            known = (("kind", line.kind), ("tenant", line.tenant), ("service", line.service), ("model", line.model))
            tags = {"site": line.site, **{name: value for name, value in known if value is not None}}
            whose = " ".join(word for word in (line.tenant, line.service) if word)
            name = whose or line.kind if line.kind == "serving" else f"{line.kind} {whose}".strip()
            allocated = (
                METHOD_ID,
                "/".join((line.kind, line.tenant or "-", line.service or "-")),
                name,
                json.dumps(tags, ensure_ascii=False, separators=(",", ":")),
            )
            custom = (CARBON_METHOD_ID, line.kind, line.tenant or "", line.service or "", line.model or "")
            found = self._parts[key] = ",".join(map(_cell, allocated)), ",".join(map(_cell, custom))
        return found


def _month_of(charge: DemandCharge) -> tuple[str, str]:
    """The UTC month that most of a local month lies in."""
    month = datetime.strptime(charge.month, "%Y-%m").replace(tzinfo=UTC)
    after = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
    return _utc(round(month.timestamp())), _utc(round(after.timestamp()))


def _origin(pair: tuple[ReportLine, int | None]) -> tuple[int, str, str | None]:
    line = pair[0]
    return line.start_s, line.site, line.pool


def fixed(value: int, places: int) -> str:
    """A whole number of 10**-places as a decimal with all of its places: `fixed(1500, 3)` is `1.500`."""
    if value < 0:
        return f"-{fixed(-value, places)}"
    text = str(value)
    if len(text) <= places:
        text = text.zfill(places + 1)
    return f"{text[:-places]}.{text[-places:]}"


def _cell(text: str) -> str:
    """A text as it stands in a CSV (RFC 4180)."""
    if any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def shares(costs: Sequence[int], energies_uj: Sequence[int]) -> list[int]:
    """Ratios of an origin charge in 10**-12, which add up to 10**12 exactly, by largest remainder.

    By cost; where costs have two signs or are nothing by energy, and where that is nothing evenly.
    """
    weights = [abs(cost) for cost in costs]
    one_sign = all(cost >= 0 for cost in costs) or all(cost <= 0 for cost in costs)
    if not one_sign or not any(weights):
        weights = list(energies_uj) if any(energies_uj) else [1] * len(costs)
    if len(weights) == 1:
        return [ONE]
    total = sum(weights)
    found = [weight * ONE // total for weight in weights]
    short = ONE - sum(found)
    if short:
        by_remainder = sorted(range(len(weights)), key=lambda i: (-(weights[i] * ONE % total), i))
        for i in by_remainder[:short]:
            found[i] += 1
    return found


def _cost(line: ReportLine) -> int:
    cost_nano = line.cost_nano
    if cost_nano is None:
        what = "electricity tariff" if line.electricity_missing_uj else "rate per GPU-hour"
        raise BadReport(
            "formats",
            f"FOCUS has no place for an unknown cost, and site {line.site} has no {what} for all of the hour from "
            f"{_utc(line.start_s)}: enter one that holds then, or leave the focus formats out",
        )
    return cost_nano


@lru_cache(maxsize=4_096)
def _utc(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()) or "operator"
