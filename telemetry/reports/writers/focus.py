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
from decimal import Decimal
from functools import lru_cache
from typing import IO

import polars

from core.cells import csv_line
from telemetry.report_values import line_blocks
from telemetry.report_values.basis import Basis, DemandCharge
from telemetry.report_values.errors import BadReport
from telemetry.report_values.line_blocks import Block

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


_OWNED = ("start_s", "end_s", "site", "pool", "currency")
_PARTS = ("site", "kind", "tenant", "service", "model")
_DETAILS = '"{""Elements"":[{""AllocatedRatio"":', ',""UsageQuantity"":', ',""UsageUnit"":""Joules""}]}"'


@dataclass(slots=True)
class FocusWriter:
    """Writes the rows of blocks as they come, in their order: by hour, site and pool. Nothing is kept.

    A million rows have to be written in half a minute: what many rows share is made once, as the text that it is in the
    file, and the rest by columns. Only ratios are worked out one by one, for they need more than 64 bits.
    """

    basis: Basis
    rows: int = 0
    _months: dict[int, str] = field(default_factory=dict)
    _owners: dict[tuple[str, str | None], tuple[str, str]] = field(default_factory=dict)

    def write(self, blocks: Iterable[Block], out: IO[bytes]) -> None:
        """`blocks` come with their market-based micrograms. Raises BadReport where a cost is not known."""
        out.write((",".join(COLUMNS) + "\n").encode())
        for block in blocks:
            self._texts(block).write_csv(out, include_header=False, quote_style="never")
            self.rows += block.height
        for charge in self.basis.demand:
            if charge.charge_nano:
                out.write(self._demand(charge, charge.charge_nano).encode())

    def _texts(self, block: Block) -> polars.DataFrame:
        """Returns a column of whole rows, each as it stands in the file."""
        _check_costs(block)
        block = block.with_columns(
            (polars.col("electricity_nano") + polars.col("rental_nano")).alias("cost_nano"),
            polars.struct("start_s", "site", "pool").rle_id().alias("charge"),
        )
        keys = block.select(_PARTS).unique(maintain_order=True)
        parts = [self._part(*key) for key in keys.iter_rows()]
        keys = keys.with_columns(
            polars.Series("allocated", [part[0] for part in parts], polars.String),
            polars.Series("custom", [part[1] for part in parts], polars.String),
        )
        return (
            block.join(keys, on=_PARTS, how="left", nulls_equal=True, maintain_order="left")
            .with_columns(self._charges(block))
            .select(_row())
        )

    def _charges(self, block: Block) -> list[polars.Series]:
        """Returns by origin charge what stands at the head and at the end of all of its rows, and each row's ratio."""
        costs, energies = block["cost_nano"].to_list(), block["energy_uj"].to_list()
        firsts = block.select(polars.col("charge").arg_unique().sort()).to_series().to_list()
        heads, tails, ratios = [], [], []
        for owned, at, end in zip(
            block[firsts].select(_OWNED).iter_rows(), firsts, [*firsts[1:], block.height], strict=True
        ):
            start_s, end_s, site, pool, currency = owned
            start = _utc(start_s)
            before, after = self._owner(site, pool)
            heads.append(f"{before},{self._month(start_s)},{start},{_utc(end_s)},{after},{currency}")
            origin = csv_line([f"{site}/{pool or NOBODY}/{start}"])
            tails.append(f"{origin},{fixed(sum(costs[at:end]), 9)},{self.basis.version}")
            ratios += shares(costs[at:end], energies[at:end])
        return [
            polars.Series("head", heads, polars.String).gather(block["charge"]),
            polars.Series("tail", tails, polars.String).gather(block["charge"]),
            polars.Series("ratio", ratios, polars.Int64),
        ]

    def _demand(self, charge: DemandCharge, cost_nano: int) -> str:
        """A row of its own, for a charge that nobody has a part of: it has no energy, and is not allocated."""
        self.rows += 1
        house, site = self.basis.organisation, self.basis.sites[charge.site]
        what = f"Demand charge of {charge.month} at {site.label}"
        cost, peak_kw = Decimal(cost_nano).scaleb(-9), Decimal(round(charge.peak_w)).scaleb(-3)
        values: dict[str, object] = {
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
        return csv_line(values.get(name) for name in COLUMNS) + "\n"

    def _month(self, start_s: int) -> str:
        """Returns the ends of the UTC month, which is the billing period."""
        found = self._months.get(start_s)
        if found is None:
            month = datetime.fromtimestamp(start_s, UTC).replace(day=1, hour=0, minute=0, second=0)
            after = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
            ends = f"{_utc(round(month.timestamp()))},{_utc(round(after.timestamp()))}"
            found = self._months[start_s] = ends
        return found

    def _owner(self, site_name: str, pool_name: str | None) -> tuple[str, str]:
        """Returns what an origin charge gives to all of its rows: the columns before those of time, and those after."""
        found = self._owners.get((site_name, pool_name))
        if found is None:
            house = self.basis.organisation
            site = self.basis.sites[site_name]
            pool = next((pool for pool in self.basis.pools.values() if pool.name == pool_name), None)
            model = (pool.model if pool else "") or NOBODY
            sku = f"gpu-time/{model}"
            before = (_slug(house), house, site_name, site.label, house, house, house)
            after = (
                *("Usage", "", "Usage-Based", f"GPU time of {f'pool {pool_name}' if pool_name else 'no pool'}"),
                *(CATEGORY, SUBCATEGORY, (pool.service if pool else "") or "LLM inference"),
                *(site_name, site.label, pool_name or f"{site_name}/{NOBODY}"),
                *(pool_name or f"GPUs at {site.label} without a pool", "GPU pool", sku, f"{sku}/{site_name}"),
                json.dumps({"site": site_name}, separators=(",", ":")),
            )
            found = csv_line(before), csv_line(after)
            self._owners[site_name, pool_name] = found
        return found

    @staticmethod
    def _part(site: str, kind: str, tenant: str | None, service: str | None, model: str | None) -> tuple[str, str]:
        """Returns the owner of this part of the origin charge: the Allocated columns, and the custom ones."""
        known = (("kind", kind), ("tenant", tenant), ("service", service), ("model", model))
        tags = {"site": site, **{name: value for name, value in known if value is not None}}
        whose = " ".join(word for word in (tenant, service) if word)
        name = whose or kind if kind == "serving" else f"{kind} {whose}".strip()
        allocated = (
            METHOD_ID,
            "/".join((kind, tenant or "-", service or "-")),
            name,
            json.dumps(tags, ensure_ascii=False, separators=(",", ":")),
        )
        custom = (CARBON_METHOD_ID, kind, tenant or "", service or "", model or "")
        return csv_line(allocated), csv_line(custom)


def _row() -> polars.Expr:
    """Returns the columns of a row after each other, from the head to the end that it shares with others."""
    unattributed = polars.col("kind") == "unattributed"  # nobody knows what it served
    tokens = polars.col("prompt_tokens") + polars.col("output_tokens")
    own = [polars.col(name).cast(polars.String) for name in ("prompt_tokens", "output_tokens")]
    cost, energy_j = line_blocks.fixed(polars.col("cost_nano"), 9), line_blocks.fixed(polars.col("energy_uj"), 6)
    consumed = polars.concat_str(
        tokens.cast(polars.String), _text(f",{TOKENS},"), line_blocks.fixed(tokens, 3), _text(f",{THOUSAND_TOKENS}")
    )
    before, between, after = map(_text, _DETAILS)
    details = polars.concat_str(before, line_blocks.fixed(polars.col("ratio"), RATIO_PLACES), between, energy_j, after)
    return polars.concat_str(
        *("head", cost, cost, cost, cost),
        polars.when(unattributed).then(_text(",,,")).otherwise(consumed),
        *("allocated", details, energy_j),
        *(line_blocks.fixed((line_blocks.wide(name) * 10 + 18) // 36, 12) for name in ("energy_uj", "facility_uj")),
        line_blocks.fixed((line_blocks.wide("gpu_us") * 1_000 + 18) // 36, 11),
        _known("location_ug", polars.col("location_missing_uj") == 0),
        _known(line_blocks.MARKET, polars.col(line_blocks.MARKET_MISSING) == 0),
        _known("embodied_ug", polars.col("embodied_missing_us") == 0),
        "custom",
        polars.when(unattributed).then(_text(",")).otherwise(polars.concat_str(*own, separator=",")),
        "tail",
        separator=",",
    )


def _text(words: str) -> polars.Expr:
    return polars.lit(words)


def _known(name: str, where: polars.Expr) -> polars.Expr:
    """Writes kilograms; an empty cell where the amount is not known."""
    return polars.when(where).then(line_blocks.fixed(polars.col(name), 9)).otherwise(_text(""))


def _month_of(charge: DemandCharge) -> tuple[str, str]:
    """Returns the UTC month that most of a local month lies in."""
    month = datetime.strptime(charge.month, "%Y-%m").replace(tzinfo=UTC)
    after = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
    return _utc(round(month.timestamp())), _utc(round(after.timestamp()))


def fixed(value: int, places: int) -> str:
    """A whole number of 10**-places as a decimal with all of its places: `fixed(1500, 3)` is `1.500`."""
    if value < 0:
        return f"-{fixed(-value, places)}"
    text = str(value)
    if len(text) <= places:
        text = text.zfill(places + 1)
    return f"{text[:-places]}.{text[-places:]}"


def shares(costs: Sequence[int], energies_uj: Sequence[int]) -> list[int]:
    """Returns ratios of an origin charge in 10**-12, which add up to 10**12 exactly, by largest remainder.

    By cost; where costs have two signs or are nothing by energy, and where that is nothing evenly.
    """
    weights = [abs(cost) for cost in costs]
    one_sign = all(cost >= 0 for cost in costs) or all(cost <= 0 for cost in costs)
    if not one_sign or not any(weights):
        weights = list(energies_uj) if any(energies_uj) else [1] * len(costs)
    if len(weights) == 1:
        return [ONE]
    total = sum(weights)
    parts = [divmod(weight * ONE, total) for weight in weights]
    found = [ratio for ratio, _ in parts]
    short = ONE - sum(found)
    if short:
        left = [remainder for _, remainder in parts]
        for i in sorted(range(len(left)), key=left.__getitem__, reverse=True)[:short]:  # of equal ones the first
            found[i] += 1
    return found


def _check_costs(block: Block) -> None:
    unknown = block.filter((polars.col("electricity_missing_uj") != 0) | (polars.col("rental_missing_us") != 0))
    if unknown.height:
        line = unknown.row(0, named=True)
        what = "electricity tariff" if line["electricity_missing_uj"] else "rate per GPU-hour"
        raise BadReport(
            "formats",
            f"FOCUS has no place for an unknown cost, and site {line['site']} has no {what} for all of the hour from "
            f"{_utc(line['start_s'])}: enter one that holds then, or leave the focus formats out",
        )


@lru_cache(maxsize=4_096)
def _utc(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()) or "operator"
