"""The columns of FOCUS's dataset Cost and Usage, by version (FinOps Open Cost and Usage Specification, 1.0 to 1.4).

One table for all versions: a column's name, its type, the fact that stands in it, and the versions that have it. What a
version has no column for stands in a custom one (`x_`), so that each version's file says the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import groupby

from telemetry.report_values.report_request import FOCUS_VERSIONS


class Level(Enum):
    """Says which rows share a fact: all of an origin charge, those of one owner in it, or none."""

    ORIGIN = "origin"
    PART = "part"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Column:
    """`kind`: FOCUS's data type. `fact`: what stands in the column, by the writer's name for it."""

    name: str
    kind: str
    level: Level
    fact: str
    versions: tuple[str, ...]

    @property
    def custom(self) -> bool:
        return self.name.startswith("x_")


ALL = FOCUS_VERSIONS
TO_1_2, FROM_1_2, FROM_1_3 = ("1.0", "1.2"), ("1.2", "1.4"), ("1.4",)
ONLY_1_0, ONLY_1_2 = ("1.0",), ("1.2",)
TEXT, MOMENT, DECIMAL, JSON = "String", "Date/Time", "Decimal", "JSON"
NOTHING = "nothing"  # the fact of columns that have to be there and never apply: GreenServe has no discounts


def _origin(versions: tuple[str, ...] = ALL, kind: str = TEXT, **facts: str) -> list[Column]:
    return [Column(name, kind, Level.ORIGIN, fact, versions) for name, fact in facts.items()]


def _part(versions: tuple[str, ...] = ALL, kind: str = TEXT, **facts: str) -> list[Column]:
    return [Column(name, kind, Level.PART, fact, versions) for name, fact in facts.items()]


def _row(versions: tuple[str, ...] = ALL, kind: str = DECIMAL, **facts: str) -> list[Column]:
    return [Column(name, kind, Level.ROW, fact, versions) for name, fact in facts.items()]


# In the order of the file: custom ones last, as the specification wants it.
TABLE: tuple[Column, ...] = (
    *_origin(BillingAccountId="account", BillingAccountName="house", SubAccountId="site", SubAccountName="site_label"),
    *_origin(FROM_1_3, HostProviderName="house"),
    *_origin(TO_1_2, ProviderName="house", PublisherName="house"),
    *_origin(InvoiceIssuerName="house"),
    *_origin(FROM_1_3, ServiceProviderName="house"),
    *_origin(ONLY_1_2, InvoiceId=NOTHING),
    *_origin(kind=MOMENT, BillingPeriodStart="month_start", BillingPeriodEnd="month_end"),
    *_origin(kind=MOMENT, ChargePeriodStart="start", ChargePeriodEnd="end"),
    *_origin(ChargeCategory="category", ChargeClass=NOTHING, ChargeFrequency="frequency", ChargeDescription="what"),
    *_origin(ServiceCategory="service_category"),
    *_origin(FROM_1_2, ServiceSubcategory="service_subcategory"),
    *_origin(ServiceName="service", RegionId="site", RegionName="site_label"),
    *_origin(ResourceId="resource", ResourceName="resource_name", ResourceType="resource_type"),
    *_origin(SkuId="sku", SkuPriceId="sku_price"),
    *_origin(kind=JSON, Tags="tags"),
    *_origin(BillingCurrency="currency"),
    *_origin(ONLY_1_2, PricingCurrency="currency"),
    *_origin(TO_1_2, PricingCategory="pricing_category"),
    *_origin(ONLY_1_0, DECIMAL, ListUnitPrice=NOTHING, ContractedUnitPrice=NOTHING),
    *_origin(TO_1_2, CommitmentDiscountCategory=NOTHING, CommitmentDiscountId=NOTHING),
    *_origin(TO_1_2, CommitmentDiscountName=NOTHING, CommitmentDiscountStatus=NOTHING),
    *_origin(TO_1_2, CommitmentDiscountType=NOTHING),
    # The names that five columns had before 1.0: the Foundation's validator for 1.0 asks for these too.
    *_origin(ONLY_1_0, Provider="house", Publisher="house", InvoiceIssuer="house", ResourceID="resource"),
    *_origin(ONLY_1_0, ChargeType="category"),
    *_row(BilledCost="cost", EffectiveCost="cost", ListCost="cost", ContractedCost="cost"),
    # Up to 1.2 in GPU-hours: no quantity of usage may be null, and nobody knows what unattributed time served.
    *_row(TO_1_2, ConsumedQuantity="hours"),
    *_row(TO_1_2, TEXT, ConsumedUnit="hours_unit"),
    *_row(TO_1_2, PricingQuantity="hours"),
    *_row(TO_1_2, TEXT, PricingUnit="hours_unit"),
    *_row(FROM_1_3, ConsumedQuantity="tokens"),
    *_row(FROM_1_3, TEXT, ConsumedUnit="tokens_unit"),
    *_row(FROM_1_3, PricingQuantity="thousand_tokens"),
    *_row(FROM_1_3, TEXT, PricingUnit="thousand_tokens_unit"),
    *_part(FROM_1_3, AllocatedMethodId="method", AllocatedResourceId="owner", AllocatedResourceName="owner_name"),
    *_part(FROM_1_3, JSON, AllocatedTags="owner_tags"),
    *_row(FROM_1_3, JSON, AllocatedMethodDetails="method_details"),
    *_part(TO_1_2, x_AllocatedMethodId="method", x_AllocatedResourceId="owner", x_AllocatedResourceName="owner_name"),
    *_part(TO_1_2, JSON, x_AllocatedTags="owner_tags"),
    *_row(TO_1_2, JSON, x_AllocatedMethodDetails="method_details"),
    *_origin(ONLY_1_0, x_ServiceSubcategory="service_subcategory"),
    *_row(x_EnergyJ="energy_j", x_EnergyKwh="energy_kwh", x_FacilityEnergyKwh="facility_kwh", x_GpuHours="gpu_hours"),
    *_row(x_Scope2LocationKgCo2e="location_kg", x_Scope2MarketKgCo2e="market_kg", x_EmbodiedKgCo2e="embodied_kg"),
    *_part(x_CarbonMethodId="carbon_method", x_EnergyKind="kind", x_TenantId="tenant", x_ServiceId="tenant_service"),
    *_part(x_ModelId="model"),
    *_row(x_PromptTokens="prompt_tokens", x_OutputTokens="output_tokens"),
    *_origin(x_SplitOriginId="origin"),
    *_origin(kind=DECIMAL, x_SplitOriginCost="origin_cost"),
    *_origin(x_ReportVersion="report_version"),
)


@cache
def columns(version: str) -> tuple[Column, ...]:
    """Returns a version's columns in the order of its file."""
    return tuple(column for column in TABLE if version in column.versions)


@cache
def runs(version: str) -> tuple[tuple[Level, tuple[str, ...]], ...]:
    """Returns the facts of a version's columns, neighbours of one level together: they are written as one text."""
    grouped = groupby(columns(version), key=lambda column: column.level)
    return tuple((level, tuple(column.fact for column in neighbours)) for level, neighbours in grouped)
