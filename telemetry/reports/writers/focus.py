"""FOCUS, dataset Cost and Usage (FinOps Open Cost and Usage Specification), as a stream of CSV rows.

An origin charge is what a pool's GPUs cost in a UTC hour; its rows are allocated charges: one for each tenant's part,
and for idle, transition and unattributed time. What belongs to the origin (resource, service, region, SKU) is the same
in all of its rows; who had the part stands in the Allocated columns and, flat, in the custom ones. Ratios are exact
decimals and add up to 1 in each origin charge. Costs may not be null in FOCUS: without a tariff there is no export.

`focus_columns` has the columns of each version; what stands in them is here and, by row, in `focus_rows`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import IO

import polars

from core.cells import csv_line
from telemetry.report_values.basis import Basis, DemandCharge
from telemetry.report_values.errors import BadReport
from telemetry.report_values.line_blocks import Block

from .focus_columns import NOTHING, Level, columns, runs
from .focus_rows import expressions, shares

METHOD_ID = "greenserve-energy-share-1"
CARBON_METHOD_ID = "ghg-scope2-average-1"
CATEGORY, SUBCATEGORY = "AI and Machine Learning", "Generative AI"
NOBODY = "unassigned"

_OWNED = ("start_s", "end_s", "site", "pool", "currency")
_PARTS = ("site", "kind", "tenant", "service", "model", "adapter")

Cells = dict[str, str]  # by fact, as they stand in the file


@dataclass(slots=True)
class FocusWriter:
    """Writes the rows of blocks as they come, in their order: by hour, site and pool. Nothing is kept.

    A million rows have to be written in half a minute: what many rows share is made once, as the text that it is in the
    file, and the rest by columns. Only ratios are worked out one by one, for they need more than 64 bits.
    """

    basis: Basis
    version: str
    rows: int = 0
    _months: dict[int, Cells] = field(default_factory=dict)
    _owners: dict[tuple[str, str | None], Cells] = field(default_factory=dict)

    def write(self, blocks: Iterable[Block], out: IO[bytes]) -> None:
        """`blocks` come with their market-based micrograms. Raises BadReport where a cost is not known."""
        out.write((",".join(column.name for column in columns(self.version)) + "\n").encode())
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
        keys = keys.with_columns(self._shared(Level.PART, (_part(*key) for key in keys.iter_rows())))
        return (
            block.join(keys, on=_PARTS, how="left", nulls_equal=True, maintain_order="left")
            .with_columns(self._charges(block))
            .select(self._row())
        )

    def _charges(self, block: Block) -> list[polars.Series]:
        """Returns what stands in all rows of their origin charge, and each row's ratio."""
        costs, energies = block["cost_nano"].to_list(), block["energy_uj"].to_list()
        firsts = block.select(polars.col("charge").arg_unique().sort()).to_series().to_list()
        cells, ratios = [], []
        for owned, at, end in zip(
            block[firsts].select(_OWNED).iter_rows(), firsts, [*firsts[1:], block.height], strict=True
        ):
            cells.append(self._charge(sum(costs[at:end]), *owned))
            ratios += shares(costs[at:end], energies[at:end])
        texts = (series.gather(block["charge"]) for series in self._shared(Level.ORIGIN, cells))
        return [*texts, polars.Series("ratio", ratios, polars.Int64)]

    def _shared(self, level: Level, cells: Iterable[Cells]) -> list[polars.Series]:
        """Returns for each run of the level's columns its texts: those that neighbours have in common are made once."""
        wanted = [(f"run_{i}", facts) for i, (of, facts) in enumerate(runs(self.version)) if of is level]
        texts: list[list[str]] = [[] for _ in wanted]
        for one in cells:
            for found, (_, facts) in zip(texts, wanted, strict=True):
                found.append(",".join([one[fact] for fact in facts]))
        return [polars.Series(name, found, polars.String) for (name, _), found in zip(wanted, texts, strict=True)]

    def _row(self) -> polars.Expr:
        """Returns the columns of a row after each other."""
        return polars.concat_str(list(self._columns()), separator=",")

    def _columns(self) -> Iterator[polars.Expr]:
        own = expressions()
        for i, (level, facts) in enumerate(runs(self.version)):
            if level is Level.ROW:
                yield from (own[fact] for fact in facts)
            else:
                yield polars.col(f"run_{i}")

    def _charge(self, cost_nano: int, start_s: int, end_s: int, site: str, pool: str | None, currency: str) -> Cells:
        start = _utc(start_s)
        return {
            **self._owner(site, pool),
            **self._month(start_s),
            "start": start,
            "end": _utc(end_s),
            "currency": currency,
            "origin": _cell(f"{site}/{pool or NOBODY}/{start}"),
            "origin_cost": fixed(cost_nano, 9),
        }

    def _demand(self, charge: DemandCharge, cost_nano: int) -> str:
        """A row of its own, for a charge that nobody has a part of: it has no energy, and is not allocated."""
        self.rows += 1
        cost, peak_kw = fixed(cost_nano, 9), f"{Decimal(round(charge.peak_w)).scaleb(-3):f}"
        found = self._place(charge.site) | {
            **dict(zip(("month_start", "month_end"), _month_of(charge), strict=True)),
            **{"start": _utc(charge.start_s), "end": _utc(charge.end_s), "currency": charge.currency, "cost": cost},
            **_cells(
                frequency="Recurring",
                what=f"Demand charge of {charge.month} at {self.basis.sites[charge.site].label}",
                service="Electricity demand",
                sku="demand-charge",
                sku_price=f"demand-charge/{charge.site}",
            ),
            **dict.fromkeys(("hours", "tokens", "thousand_tokens"), peak_kw),
            **dict.fromkeys(("hours_unit", "tokens_unit", "thousand_tokens_unit"), "kW"),
        }
        return ",".join(found.get(column.fact, "") for column in columns(self.version)) + "\n"

    def _month(self, start_s: int) -> Cells:
        """Returns the ends of the UTC month, which is the billing period."""
        found = self._months.get(start_s)
        if found is None:
            month = datetime.fromtimestamp(start_s, UTC).replace(day=1, hour=0, minute=0, second=0)
            after = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
            found = {"month_start": _utc(round(month.timestamp())), "month_end": _utc(round(after.timestamp()))}
            self._months[start_s] = found
        return found

    def _place(self, site: str) -> Cells:
        """Returns what all charges at a site have."""
        house = self.basis.organisation
        return _cells(
            **{NOTHING: ""},
            account=_slug(house),
            house=house,
            site=site,
            site_label=self.basis.sites[site].label,
            category="Usage",
            service_category=CATEGORY,
            service_subcategory=SUBCATEGORY,
            pricing_category="Standard",
            tags=json.dumps({"site": site}, separators=(",", ":")),
            report_version=self.basis.version,
        )

    def _owner(self, site: str, pool_name: str | None) -> Cells:
        """Returns what a pool, or the GPUs of a site that are in none, give to all of their origin charges."""
        found = self._owners.get((site, pool_name))
        if found is None:
            pool = next((pool for pool in self.basis.pools.values() if pool.name == pool_name), None)
            sku = f"gpu-time/{(pool.model if pool else '') or NOBODY}"
            found = self._place(site) | _cells(
                frequency="Usage-Based",
                what=f"GPU time of {f'pool {pool_name}' if pool_name else 'no pool'}",
                service=(pool.service if pool else "") or "LLM inference",
                resource=pool_name or f"{site}/{NOBODY}",
                resource_name=pool_name or f"GPUs at {self.basis.sites[site].label} without a pool",
                resource_type="GPU pool",
                sku=sku,
                sku_price=f"{sku}/{site}",
            )
            self._owners[site, pool_name] = found
        return found


def _part(
    site: str, kind: str, tenant: str | None, service: str | None, model: str | None, adapter: str | None
) -> Cells:
    """Returns the owner of this part of the origin charge: the Allocated columns, and the custom ones."""
    known = (("kind", kind), ("tenant", tenant), ("service", service), ("model", model), ("adapter", adapter))
    tags = {"site": site, **{name: value for name, value in known if value is not None}}
    whose = " ".join(word for word in (tenant, service, adapter) if word)
    return _cells(
        method=METHOD_ID,
        owner="/".join((kind, tenant or "-", service or "-", *((adapter,) if adapter else ()))),
        owner_name=whose or kind if kind == "serving" else f"{kind} {whose}".strip(),
        owner_tags=json.dumps(tags, ensure_ascii=False, separators=(",", ":")),
        carbon_method=CARBON_METHOD_ID,
        kind=kind,
        tenant=tenant or "",
        tenant_service=service or "",
        model=model or "",
    )


def _cells(**texts: str) -> Cells:
    return {fact: _cell(text) for fact, text in texts.items()}


def _cell(text: str) -> str:
    """Writes one cell. A line of CSV with nothing but an empty cell has quotes; a cell among others has none."""
    return csv_line([text]) if text else ""


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
