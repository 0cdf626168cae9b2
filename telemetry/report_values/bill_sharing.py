"""Shares what is nobody's out among tenants, by one of three bases: docs/reports.md has their formulas and sources.

Direct parts are the tenants' already (`core.accounting.allocation`: token-time). What is shared comes hour by hour;
of the lines themselves nothing is kept, so that memory does not grow with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import polars

from core.accounting.whole_shares import cut, whole_weights

from .basis import Basis, DemandCharge
from .bill import AMOUNT_NAMES, BASE, DIRECT, IDLE, TRANSITION, Bill, BillLine, DemandShare, ordered, part_totals
from .line_blocks import Block, wide
from .totals import Totals

SERVING = "serving"
# What hardware costs by its time, whether it works or not; all else follows the energy.
CAPACITY = frozenset(
    ("gpu_us", "embodied_ug", "embodied_missing_us", "rental_nano", "rental_missing_us"),
)
TOKENS = frozenset(("prompt_tokens", "output_tokens"))
Tenant = str | None  # None: the operator
Amounts = list[int]  # by AMOUNT_NAMES
Weights = Mapping[str | None, int]
_ENERGY_AT = AMOUNT_NAMES.index("energy_uj")
_GPU_AT = AMOUNT_NAMES.index("gpu_us")


def _nothing() -> Amounts:
    return [0] * len(AMOUNT_NAMES)


@dataclass(slots=True)
class BillSharing:
    """Takes blocks of lines in, and makes the bill of them.

    Attributes:
        services: The service of each pool.
        allocations: Shares that are reserved for tenants, by service; a tenant that is served and not named has 1.
    """

    basis: str
    services: Mapping[str, str]
    allocations: Mapping[str, Mapping[str, Fraction]]
    _direct: dict[tuple[str, str | None, str | None, Tenant, str, str | None], Amounts] = field(default_factory=dict)
    _borne: dict[tuple[Tenant, str, str | None, str, str, str | None], Amounts] = field(default_factory=dict)
    _waiting: dict[tuple[str, str | None, str, str, str], Amounts] = field(default_factory=dict)
    _daily_use: dict[tuple[str, str, str], dict[Tenant, int]] = field(default_factory=lambda: defaultdict(dict))
    _site_use: dict[str, dict[Tenant, int]] = field(default_factory=lambda: defaultdict(dict))
    _held_us: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    _idle: dict[tuple[str, str | None], tuple[int, int]] = field(default_factory=dict)  # uJ and us of a pool
    _reserved: dict[str, Weights] = field(default_factory=dict)  # by service

    def add(self, block: Block) -> None:
        """Takes a block in. Its lines have their market-based Scope 2 and `day` already (`totals.ReportTotals.add`)."""
        serving = block.filter(polars.col("kind") == SERVING)
        for *key, amounts in _sums(serving, ("site", "pool", "service", "tenant", "currency", "adapter")):
            _plus(self._direct, tuple(key), amounts)
            site, pool, service, *_ = key
            self._hold(site, self.services.get(pool or "", service), amounts)
        hour = self._use(serving)
        for start_s, day, site, pool, kind, currency, amounts in _sums(
            block.filter(polars.col("kind") != SERVING), ("start_s", "day", "site", "pool", "kind", "currency")
        ):
            service = self.services.get(pool) if pool else None
            if kind == IDLE:
                idle_uj, idle_us = self._idle.get((site, pool), (0, 0))
                self._idle[site, pool] = idle_uj + amounts[_ENERGY_AT], idle_us + amounts[_GPU_AT]
            self._hold(site, service, amounts)
            if self._by_use(kind) and (weights := hour.get((start_s, site, pool))):
                self._bear(weights, site, service, kind, currency, amounts)
            else:
                _plus(self._waiting, (site, service, day, kind, currency), amounts)

    def bill(self, charges: Iterable[DemandCharge]) -> Bill:
        """Makes the bill of all that was taken in, and of the period's demand charges."""
        self._reserved = self._reservations()
        for key, amounts in self._direct.items():
            self._add_direct(*key, amounts)
        for (site, service, day, part, currency), amounts in self._waiting.items():
            self._add_waiting(site, service, day, part, currency, amounts)
        demand = [share for charge in charges for share in self._demand(charge)]
        lines = (
            BillLine(tenant, site, service, part, currency, _totals(part, amounts), adapter)
            for (tenant, site, service, part, currency, adapter), amounts in self._borne.items()
            if any(amounts)
        )
        return Bill(self.basis, ordered(lines), tuple(demand))

    # -- taken in ----------------------------------------------------------------------------------

    def _use(self, serving: Block) -> dict[tuple[int, str, str | None], dict[Tenant, int]]:
        """Returns the tenants' joules by hour and pool, and keeps them by service and day, and by site."""
        found: dict[tuple[int, str, str | None], dict[Tenant, int]] = defaultdict(dict)
        by = ("start_s", "day", "site", "pool", "tenant")
        sums = serving.group_by(by, maintain_order=True).agg(wide("energy_uj").sum())
        for start_s, day, site, pool, tenant, energy_uj in sums.iter_rows():
            if energy_uj:
                uses = [found[start_s, site, pool], self._site_use[site]]
                if service := self.services.get(pool):
                    uses.append(self._daily_use[site, service, day])
                for use in uses:
                    use[tenant] = use.get(tenant, 0) + energy_uj
        return found

    def _hold(self, site: str, service: str | None, amounts: Amounts) -> None:
        if service is not None:
            held = self._held_us[site]
            held[service] = held.get(service, 0) + amounts[_GPU_AT]

    def _by_use(self, kind: str) -> bool:
        return self.basis == "usage" or (self.basis == "marginal" and kind == TRANSITION)

    # -- shared out --------------------------------------------------------------------------------

    def _add_direct(
        self,
        site: str,
        pool: str | None,
        service: str | None,
        tenant: Tenant,
        currency: str,
        adapter: str | None,
        amounts: Amounts,
    ) -> None:
        """Gives direct parts to their tenants; by marginal cost without what the GPUs take and cost in any case."""
        if self.basis != "marginal":
            self._take(tenant, site, service, DIRECT, currency, amounts, adapter)
            return
        added, base = _parted(amounts, self._base_uj(site, pool, amounts))
        self._take(tenant, site, service, DIRECT, currency, added, adapter)
        self._take(None, site, service, BASE, currency, base)

    def _base_uj(self, site: str, pool: str | None, amounts: Amounts) -> int:
        """Returns what the same GPU time takes without load, by the mean of the pool's idle time; without any, 0."""
        idle_uj, idle_us = self._idle.get((site, pool), (0, 0))
        return min(amounts[_ENERGY_AT], amounts[_GPU_AT] * idle_uj // idle_us) if idle_us else 0

    def _add_waiting(
        self, site: str, service: str | None, day: str, part: str, currency: str, amounts: Amounts
    ) -> None:
        if self.basis == "allocation":

            def take(tenant: Tenant, own: Amounts) -> None:
                self._take(tenant, site, service, part, currency, own)

            self._by_holders(site, service, amounts, take)
            return
        weights: Weights = {}
        if self._by_use(part):
            weights = self._daily_use.get((site, service or "", day), {})
            if not weights and self.basis == "usage":
                weights = self._site_use.get(site, {})
        self._bear(weights or {None: 1}, site, service, part, currency, amounts)

    def _bear(
        self, weights: Weights, site: str, service: str | None, part: str, currency: str, amounts: Amounts
    ) -> None:
        """Shares a part's amounts out by use; by marginal cost, what is owed to capacity is the operator's."""
        if self.basis == "marginal":
            amounts, capacity = _parted(amounts, 0)
            self._take(None, site, service, part, currency, capacity)
        for tenant, own in _cut_all(amounts, weights):
            self._take(tenant, site, service, part, currency, own)

    def _by_holders(
        self, site: str, service: str | None, amounts: Amounts, take: Callable[[Tenant, Amounts], None]
    ) -> None:
        """Shares amounts out by what is reserved: a service's by its holders, others by services' GPU time first."""
        if service is not None and (holders := self._reserved.get(service)):
            for tenant, own in _cut_all(amounts, holders):
                take(tenant, own)
            return
        held = {one: us for one, us in sorted(self._held_us.get(site, {}).items()) if us and one in self._reserved}
        if not held:
            take(None, amounts)
        for one, part in _cut_all(amounts, held) if held else ():
            self._by_holders(site, one, part, take)

    def _reservations(self) -> dict[str, Weights]:
        """Returns by service what is reserved for whom: for those that are named, and 1 for others that were served."""
        found: dict[str, dict[Tenant, Fraction]] = defaultdict(dict)
        for (_, pool, service, tenant, *_), amounts in self._direct.items():
            owner = self.services.get(pool or "", service)
            if tenant is not None and owner is not None and amounts[_ENERGY_AT]:
                found[owner][tenant] = Fraction(1)
        for service, shares in self.allocations.items():
            for tenant, share in shares.items():
                found[service][tenant] = share
        return {service: whole_weights(shares) for service, shares in found.items() if shares}

    def _demand(self, charge: DemandCharge) -> Iterator[DemandShare]:
        shares: dict[Tenant, Amounts] = {}
        whole = [round(charge.peak_w * 1e6), charge.charge_nano or 0]

        def take(tenant: Tenant, own: Amounts) -> None:
            _plus(shares, tenant, own)

        if self.basis == "allocation":
            self._by_holders(charge.site, None, whole, take)
        else:
            used = {tenant: uj for tenant, uj in charge.quarter if uj} or self._site_use.get(charge.site, {})
            weights = used if self.basis == "usage" and used else {None: 1}
            for tenant, own in _cut_all(whole, weights):
                take(tenant, own)
        for tenant, (peak_uw, nano) in sorted(shares.items(), key=lambda item: _order(item[0])):
            known = None if charge.charge_nano is None else nano
            yield DemandShare(tenant, charge.site, charge.month, charge.currency, peak_uw, known)

    def _take(
        self,
        tenant: Tenant,
        site: str,
        service: str | None,
        part: str,
        currency: str,
        amounts: Amounts,
        adapter: str | None = None,
    ) -> None:
        _plus(self._borne, (tenant, site, service, part, currency, adapter), amounts)


def sharing_of(bill_basis: str, basis: Basis) -> BillSharing:
    """Makes what takes a report's blocks in, with the pools and reserved shares that the report has."""
    services = {pool.name: pool.service for pool in basis.pools.values()}
    reserved = {
        service: {tenant: Fraction(share) for tenant, share in shares.items()}
        for service, shares in basis.inputs.allocations.items()
    }
    return BillSharing(bill_basis, services, reserved)


def _totals(part: str, amounts: Amounts) -> Totals:
    return part_totals(part, dict(zip(AMOUNT_NAMES, amounts, strict=True)))


def _order(tenant: Tenant) -> tuple[bool, str]:
    return tenant is None, tenant or ""


def _sums(lines: Block, by: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yields the values of `by` and the amounts of each group."""
    sums = lines.group_by(by, maintain_order=True).agg(wide(name).sum() for name in AMOUNT_NAMES)
    for row in sums.iter_rows():
        yield *row[: len(by)], list(row[len(by) :])


def _plus(table: dict[Any, Amounts], key: Any, amounts: Amounts) -> None:
    found = table.get(key)
    table[key] = list(amounts) if found is None else [a + b for a, b in zip(found, amounts, strict=True)]


def _parted(amounts: Amounts, base_uj: int) -> tuple[Amounts, Amounts]:
    """Splits amounts into what load adds and what there is in any case: `base_uj` of the energy, and all capacity."""
    energy_uj = amounts[_ENERGY_AT]
    weights = (energy_uj - base_uj, base_uj) if energy_uj else (1, 0)
    pairs = [
        (0, amount) if name in CAPACITY else (amount, 0) if name in TOKENS else cut(amount, weights)
        for name, amount in zip(AMOUNT_NAMES, amounts, strict=True)
    ]
    return [added for added, _ in pairs], [base for _, base in pairs]


def _cut_all(amounts: Amounts, weights: Mapping[Any, int]) -> Iterator[tuple[Any, Amounts]]:
    """Yields each one's whole shares of the amounts, in the order of names: they add up to the amounts."""
    names = sorted(weights, key=_order)
    whole = [weights[name] for name in names]
    columns = [cut(amount, whole) if amount else [0] * len(names) for amount in amounts]
    for name, own in zip(names, zip(*columns, strict=True), strict=True):
        yield name, list(own)
