"""Whatever the ledger says, a bill adds up to it in each basis; what is not known is never nothing."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.report_values.basis import DemandCharge
from telemetry.report_values.bill import AMOUNT_NAMES, BASES, DIRECT, added
from telemetry.report_values.bill_sharing import BillSharing
from telemetry.report_values.line_blocks import MARKET, MARKET_MISSING
from telemetry.report_values.totals import Totals
from tests.fakes import bills
from tests.representatives import first

SITES = {"ashburn": "USD", "berlin": "EUR"}
POOLS = {f"{service}/{site}/{name}": service for service in ("chat", "code") for site in SITES for name in ("S", "L")}
TENANTS = ("acme", "birch", "cobalt", None)
HOUR_S = 3_600
LARGE = 10**15


@st.composite
def ledgers(draw):
    """Lines of two days at two sites: tenants, nobody's requests, refused ones, silent meters, prices below zero,
    missing intensities, contracts, tariffs and rates."""
    lines, market = [], []
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(("serving", "idle", "transition", "unattributed")))
        site = draw(st.sampled_from(sorted(SITES)))
        pool = draw(st.sampled_from([None, *(name for name in POOLS if f"/{site}/" in name)]))
        if kind == "serving":
            pool = pool or f"chat/{site}/S"
        energy_uj = draw(st.sampled_from((0, 1)) | st.integers(0, LARGE))
        gpu_us = draw(st.integers(0, 10**12))
        lines.append(
            bills.line(
                start_s=draw(st.integers(0, 47)) * HOUR_S,
                site=site,
                kind=kind,
                tenant=draw(st.sampled_from(TENANTS)) if kind == "serving" else None,
                service=POOLS[pool] if kind == "serving" else None,
                pool=pool,
                currency=SITES[site],
                energy_uj=energy_uj,
                facility_uj=energy_uj * 6 // 5,
                gpu_us=gpu_us,
                location_ug=draw(st.integers(0, LARGE)),
                location_missing_uj=draw(st.sampled_from((0, energy_uj, energy_uj // 2))),
                embodied_ug=draw(st.integers(0, 10**9)),
                embodied_missing_us=draw(st.sampled_from((0, gpu_us))),
                electricity_nano=draw(st.integers(-LARGE, LARGE)),
                electricity_missing_uj=draw(st.sampled_from((0, energy_uj))),
                rental_nano=draw(st.integers(0, LARGE)),
                rental_missing_us=draw(st.sampled_from((0, gpu_us))),
                requests=1,
                prompt_tokens=draw(st.integers(0, 9_999)) if kind == "serving" else 0,
                output_tokens=draw(st.integers(0, 9_999)) if kind == "serving" else 0,
            )
        )
        market.append(draw(st.none() | st.integers(0, LARGE)))
    order = sorted(range(len(lines)), key=lambda i: lines[i].start_s)
    return [lines[i] for i in order], [market[i] for i in order]


WEIGHTS = st.dictionaries(
    st.sampled_from(("chat", "code")),
    st.dictionaries(
        st.sampled_from(("acme", "birch", "dune")), st.sampled_from((Fraction("0.1"), Fraction(3))), min_size=1
    ),
)
QUARTERS = st.lists(
    st.tuples(st.sampled_from(TENANTS), st.integers(0, LARGE)), max_size=3, unique_by=lambda one: one[0]
)


def billed(basis, lines, market, weights=None, charges=(), at_once=True):
    sharing = BillSharing(basis, POOLS, weights or {})
    halves = [
        [i for i, line in enumerate(lines) if at_once or (line.start_s < 24 * HOUR_S) == first]
        for first in (True, False)
    ]
    for own in halves[:1] if at_once else halves:
        sharing.add(bills.block([lines[i] for i in own], [market[i] for i in own]))
    return sharing.bill(charges)


def metered(lines, market):
    found = Totals(lines=1)
    for line, market_ug in zip(lines, market, strict=True):
        for name in AMOUNT_NAMES:
            if name == MARKET:
                value = market_ug or 0
            elif name == MARKET_MISSING:
                value = line.facility_uj if market_ug is None else 0
            else:
                value = getattr(line, name)
            setattr(found, name, getattr(found, name) + value)
    return found


@given(ledgers(), WEIGHTS, QUARTERS, st.none() | st.integers(0, LARGE))
def test_bill_adds_up_to_the_meters_and_the_money_when_anything_is_billed(ledger, weights, quarter, nano):
    lines, market = ledger
    charge = DemandCharge("ashburn", "2026-10", 0, 1, 1234.5, nano, "USD", tuple(quarter))
    whole, by_site = metered(lines, market), {}
    for site in SITES:
        own = [i for i, line in enumerate(lines) if line.site == site]
        by_site[site] = metered([lines[i] for i in own], [market[i] for i in own])
    for basis in BASES:
        bill = billed(basis, lines, market, weights, [charge])
        assert bill.left_over(whole, nano or 0) == {}, basis
        assert sum(share.peak_uw for share in bill.demand) == 1_234_500_000, basis
        for site, currency in SITES.items():
            at_site = added(line.totals for line in bill.lines if line.site == site)
            assert all(getattr(at_site, name) == getattr(by_site[site], name) for name in AMOUNT_NAMES), basis
            assert {line.currency for line in bill.lines if line.site == site} <= {currency}, basis
        by_tenant = [bill.of(tenant).total() for tenant in bill.tenants]
        assert added(by_tenant) == bill.total(), basis


@pytest.mark.parametrize("basis", first(1, reversed(BASES), "blocks are added up alike in each basis"))
@given(ledgers(), WEIGHTS)
def test_bill_is_the_same_when_its_blocks_are_smaller(basis, ledger, weights):
    assert billed(basis, *ledger, weights) == billed(basis, *ledger, weights, at_once=False)


@pytest.mark.parametrize("basis", first(1, ["allocation", "usage"], "direct energy is shared alike"))
@given(ledgers(), WEIGHTS)
def test_tenant_bears_its_direct_energy_in_full_when_the_basis_is_not_marginal(basis, ledger, weights):
    lines, market = ledger
    bill = billed(basis, lines, market, weights)
    for tenant in TENANTS:
        direct = added(line.totals for line in bill.of(tenant).lines if line.part == DIRECT)
        assert direct.energy_uj == sum(
            line.energy_uj for line in lines if line.kind == "serving" and line.tenant == tenant
        )


@given(ledgers(), WEIGHTS)
def test_operator_bears_nothing_when_the_basis_is_usage_and_each_site_has_tenants(ledger, weights):
    lines, market = ledger
    served = [line for line in lines if line.kind == "serving" and line.energy_uj]
    bill = billed("usage", lines, market, weights)
    if all(line.tenant for line in lines if line.kind == "serving") and {line.site for line in served} == set(SITES):
        assert None not in bill.tenants


def serving(tenant, energy_uj=100, **given):
    return bills.line(
        kind="serving", tenant=tenant, service="chat", pool="chat/ashburn/S", energy_uj=energy_uj, **given
    )


def test_figure_is_unknown_for_each_tenant_that_bears_a_part_of_the_unknown():
    lines = [
        serving("acme", location_ug=7),
        serving("birch", location_ug=7),
        bills.line(pool="chat/ashburn/S", energy_uj=50, location_missing_uj=50, electricity_missing_uj=50),
        bills.line(start_s=HOUR_S, pool="code/ashburn/S", energy_uj=9),
    ]
    bill = billed("usage", lines, [0] * 4)
    for tenant in ("acme", "birch"):
        own = bill.of(tenant)
        assert own.total().location is None
        assert own.due("USD").electricity_nano is None
        assert own.due("USD").total_nano is None
    assert billed("marginal", lines, [0] * 4).of("acme").total().location == 7


def test_total_due_is_unknown_when_a_demand_charge_is():
    bill = billed("usage", [serving("acme", electricity_nano=5)], [0], {}, [_charge(None, (("acme", 1),))])
    due = bill.of("acme").due("USD")
    assert (due.electricity_nano, due.demand_nano, due.total_nano) == (5, None, None)


def test_demand_charge_goes_by_the_peak_quarter_then_by_the_site_then_to_the_operator():
    lines = [serving("acme", 300, gpu_us=5), serving("birch", 100, gpu_us=5)]
    market = [0, 0]
    quarter = (("birch", 7), ("acme", 0))
    assert _demand(billed("usage", lines, market, {}, [_charge(100, quarter)])) == {"birch": 100}
    assert _demand(billed("usage", lines, market, {}, [_charge(100, ())])) == {"acme": 75, "birch": 25}
    assert _demand(billed("usage", [bills.line(energy_uj=1)], [0], {}, [_charge(100, ())])) == {None: 100}
    weights = {"chat": {"acme": Fraction(1), "dune": Fraction(2)}}
    assert _demand(billed("allocation", lines, market, weights, [_charge(100, ())])) == {
        "acme": 25,
        "birch": 25,  # served, and not named: 1
        "dune": 50,
    }


def test_pool_that_nobody_used_is_borne_by_the_service_of_the_day_then_by_the_site():
    lines = [
        serving("acme", 100),
        bills.line(start_s=HOUR_S, pool="chat/ashburn/L", energy_uj=10),  # the same day
        serving("birch", 300, start_s=30 * HOUR_S),
        bills.line(start_s=31 * HOUR_S, pool="code/ashburn/S", energy_uj=40),  # a service that nobody used
    ]
    bill = billed("usage", lines, [0] * 4)
    assert {tenant: bill.of(tenant).total().energy_uj for tenant in bill.tenants} == {
        "acme": 100 + 10 + 10,
        "birch": 300 + 30,
    }


def test_nothing_is_left_to_tenants_of_refused_requests_when_they_used_nothing():
    lines = [serving("acme", 0, requests=3), serving("birch", 5), bills.line(pool="chat/ashburn/S", energy_uj=10)]
    for basis in ("usage", "allocation"):
        bill = billed(basis, lines, [0] * 3)
        assert bill.tenants == ["birch"], basis


def _charge(nano, quarter):
    return DemandCharge("ashburn", "2026-10", 0, 1, 1.0, nano, "USD", quarter)


def _demand(bill):
    return {share.tenant: share.charge_nano for share in bill.demand}
