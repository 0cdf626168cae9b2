"""A report's content, ready to be written for people: what stands in the workbook and in the document. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from .basis import Basis, SiteBasis
from .bill import Bill
from .contracts import KIND_WORDS
from .inputs import ReportInput
from .lines import joules
from .market import HOURLY
from .period import Period
from .report_request import ReportRequest
from .scope2 import Scope2
from .signature import signature
from .table import COLUMNS, NAMES, Cell, Column
from .totals import Day, Group, ReportTotals, Totals
from .unit_scale import energy_words

DAY_COLUMNS = ("energy_kwh", "idle_kwh", "scope2_location_kgco2e", "scope2_market_kgco2e", "cost", "output_tokens")
MATCHING_WORDS = {
    "hourly": "by contracts, matched hour by hour: what is generated in an hour covers at most what is used in it",
    "period": "by contracts, matched over the period: what is generated in an hour may cover any other (as in annual "
    "matching)",
}


@dataclass(frozen=True, slots=True)
class Statement:
    """A report's request, its basis and its figures."""

    request: ReportRequest
    period: Period
    basis: Basis
    scope2: Scope2
    rows: Sequence[Group]
    days: Sequence[Day]
    total: Totals
    totals_by_currency: Mapping[str | None, Totals]
    bill: Bill | None  # None: none was asked for
    signature: str | None  # over figures and inputs; reports without a bill have none

    @classmethod
    def of(cls, request: ReportRequest, basis: Basis, totals: ReportTotals, bill: Bill | None) -> Statement:
        return cls(
            request=request,
            period=request.span(),
            basis=basis,
            scope2=totals.scope2,
            rows=totals.rows(),
            days=totals.days_and_sites(),
            total=totals.total(),
            totals_by_currency=totals.by_currency(),
            bill=bill,
            signature=None if bill is None else signature(request, basis, totals, bill),
        )

    @property
    def title(self) -> str:
        return f"Energy, carbon and cost, {self.period.words}"

    @property
    def provisional(self) -> bool:
        """Part of the period is not settled: more will come."""
        return self.basis.settled_until_s < self.period.end_s

    @property
    def facts(self) -> list[tuple[str, str]]:
        basis, period = self.basis, self.period
        return [
            ("organisation", basis.organisation),
            ("period", f"{self.moment(period.start_s)} to {self.moment(period.end_s)} (exclusive)"),
            ("sites", ", ".join(site.label for _, site in self.sites())),
            ("grouped by", ", ".join(self.request.by) or "nothing: one row for all"),
            ("version", basis.version),
            ("made", self.moment(basis.made_s)),
            (
                "settled",
                f"until {self.moment(basis.settled_until_s)}: provisional" if self.provisional else "the whole period",
            ),
            ("made with", basis.product),
        ]

    @property
    def warnings(self) -> list[str]:
        """Returns what stands across each page of a bill: why its figures are not to be paid as they are."""
        found = ["contains synthetic data"] if self.basis.inputs.synthetic else []
        return [*found, "provisional"] if self.provisional else found

    def inputs(self) -> list[ReportInput]:
        """Returns what the figures rest on besides the meters, in the order of the table."""
        return list(self.basis.inputs.rows(self.basis.contracts))

    def site_label(self, name: str) -> str:
        return self.basis.sites[name].label if name in self.basis.sites else name

    def span_words(self, start_s: int | None, end_s: int | None) -> str:
        """Returns `from 2026-10-01 UTC to 2026-10-05 13:00 UTC`; what is open has no words."""
        words = ["" if start_s is None else f"from {self.moment(start_s)}"]
        words.append("" if end_s is None else f"to {self.moment(end_s)}")
        return " ".join(filter(None, words)).replace(" 00:00 ", " ")

    def moment(self, at_s: int) -> str:
        local = datetime.fromtimestamp(at_s, UTC).astimezone(ZoneInfo(self.period.zone))
        return f"{local:%Y-%m-%d %H:%M} {self.period.zone}"

    def local_hour(self, at_s: int) -> int:
        """Returns the hour of the day by the clock of the period's zone."""
        return datetime.fromtimestamp(at_s, ZoneInfo(self.period.zone)).hour

    def sites(self) -> list[tuple[str, SiteBasis]]:
        return self.basis.sites_by_rank()

    # -- rows --------------------------------------------------------------------------------------

    @property
    def header(self) -> list[str]:
        return [*self.request.by, "currency", *NAMES]

    def column_at(self, name: str) -> int:
        return self.header.index(name)

    def labels(self, group: Group) -> list[str]:
        """Returns a row's names, with words for what is nobody's."""
        return [
            value if value is not None else NOBODYS[name]
            for name, value in zip(self.request.by, group.key, strict=True)
        ]

    def total_cell(self, column: Column, currency: str | None) -> Cell:
        """Returns the figure of all rows, or of those of one currency ("": those without), as the formulas have it."""
        totals = self.total if currency is None else self.totals_by_currency[currency or None]
        return column.cell(Group((), None, totals, True))

    @property
    def day_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in COLUMNS if column.name in DAY_COLUMNS)

    def day_rows(self) -> Iterator[tuple[str, str, list[Cell]]]:
        for day in self.days:
            group = Group((), None, day.totals, True)
            yield day.date, day.site, [column.cell(group) for column in self.day_columns]

    # -- notes -------------------------------------------------------------------------------------

    @property
    def notes(self) -> list[str]:
        return [*self._method(), *self._contracts(), *self._demand(), *self._gaps(), *self._saved()]

    def _method(self) -> Iterator[str]:
        metered = sum(meter.period_uj for meter in self.basis.meters)
        yield (
            f"Energy is metered by {len(self.basis.meters)} GPU counters: {joules(metered)} J in this period. "
            f"Facility energy is that times each site's PUE."
        )
        total = self.total
        if not total.host_metered:
            yield "Energy of the hosts (processors, memory, fans) is not metered: all figures are of the GPUs alone."
        else:
            yield (
                f"Energy of the hosts (processors, memory, fans), {energy_words(total.host_uj)}, is shown beside that "
                "of the GPUs and is in no other figure: facility energy, emissions and costs are of the GPUs alone."
            )
        yield (
            "Scope 2 after the GHG Protocol: location-based by the grid's average intensity in each interval; "
            f"market-based {MATCHING_WORDS[self.request.matching]}. Marginal intensities are not in it."
        )
        yield (
            "Embodied carbon after SCI 1.1, M = TE x (TiR / EL) x (RR / ToR). SCI = (E x I + M) / R with an output "
            "token as R; E has idle energy in it where the row has."
        )
        yield "An empty cell is not known; it is never nothing. docs/reports.md explains each column."

    def _contracts(self) -> Iterator[str]:
        year = datetime.fromtimestamp(self.period.start_s, UTC).year
        missing = self.scope2.by_site()
        for name, market in self.scope2.sites.items():
            site = self.basis.sites[name]
            for cover in market.covers(self.request.matching):
                contract = cover.contract
                yield (
                    f"{site.label}: {energy_words(cover.covered_uj)} by {KIND_WORDS[contract.kind]} at "
                    f"{contract.factor_g_per_kwh} gCO2e/kWh ({contract.source})."
                )
                for gap in contract.unproven(site.market, year):
                    yield f"{site.label}: {contract.source}: {gap}. Scope 2 Guidance, table 7.1."
            sums = missing.get(name)
            if sums is None:
                continue
            left_uj = sums.hourly_missing_uj if self.request.matching == HOURLY else sums.period_missing_uj
            if left_uj:
                yield (
                    f"{site.label}: {energy_words(left_uj)} have no contract, supplier's factor or residual mix: "
                    "market-based Scope 2 is unknown. Enter the market's residual mix for them."
                )
            if sums.silent_hours:
                hours = f"{sums.silent_hours:,} hours"
                yield f"{site.label}: in {hours} a contract's generation is not known: it covers nothing then."

    @property
    def demand_by_currency(self) -> dict[str, int]:
        """Demand charges that are known, in billionths."""
        found: dict[str, int] = {}
        for charge in self.basis.demand:
            if charge.charge_nano is not None:
                found[charge.currency] = found.get(charge.currency, 0) + charge.charge_nano
        return dict(sorted(found.items()))

    def _demand(self) -> Iterator[str]:
        for charge in self.basis.demand:
            label = self.basis.sites[charge.site].label if charge.site in self.basis.sites else charge.site
            known = charge.charge_nano
            cost = "unknown: no tariff holds" if known is None else f"{known / 1e9:,.2f} {charge.currency}"
            yield (
                f"{label}: demand charge of {charge.month} for a peak of {charge.peak_w / 1e3:,.1f} kW: {cost}. It is "
                "not in the rows' cost."
            )

    def _gaps(self) -> Iterator[str]:
        total = self.total
        if self.provisional:
            yield "Provisional: part of the period is not settled yet, and a later revision will have more in it."
        if total.host_metered and total.host_missing_uj:
            yield f"{energy_words(total.host_missing_uj)} of the GPUs were used where no host was metered."
        if total.location_missing_uj:
            yield (
                f"{energy_words(total.location_missing_uj)} were used while the carbon feed had no value. Known is "
                f"{total.location_ug / 1e9:,.3f} kgCO2e for the rest."
            )
        if total.electricity_missing_uj:
            yield f"{energy_words(total.electricity_missing_uj)} were used without a tariff: their cost is unknown."
        if total.unmetered:
            yield (
                f"{total.unmetered:,} requests were served at sites of which nothing was metered: what they used is "
                "unknown, and so are the totals with them."
            )
        if total.without_tokens:
            yield f"{total.without_tokens:,} requests were served without anybody counting their tokens."
        unrented = [site.label for _, site in sorted(self.basis.sites.items()) if not site.rented]
        if unrented:
            yield f"No rate per GPU-hour is entered for {', '.join(unrented)}: cost there is electricity only."

    def _saved(self) -> Iterator[str]:
        baseline = self.basis.baseline
        if baseline is None:
            return
        metered_uj = self.total.energy_uj
        yield (
            f"Saved (modelled): the same {baseline.requests:,} requests, replayed in the simulator under "
            f"{baseline.policy}, take {energy_words(baseline.energy_uj)}; metered here were "
            f"{energy_words(metered_uj)}, so {energy_words(baseline.energy_uj - metered_uj)} were saved. "
            f"It is of {baseline.hours_words(self.period)}. {baseline.how}"
        )


NOBODYS = {
    "site": "no site",
    "tenant": "(no tenant)",
    "service": "(no service)",
    "pool": "(no pool)",
    "model": "(no model)",
    "adapter": "(no adapter)",
}
