"""Settled windows: they add up to the meters, restate what was revised, and read as they did then."""

import itertools
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import DatabaseError, transaction
from django.db.models import F, Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pools.models import Node, Service
from telemetry import selectors
from telemetry.ledger import settled_reader, settlement, window_sources
from telemetry.models import (
    CarbonPoint,
    EnergyEntry,
    EnergyRollup,
    RequestRecord,
    RequestShare,
    Settlement,
    StatementHour,
    StatementLine,
)
from telemetry.selectors.frames import TimeRange
from tests.fakes import metering
from tests.fakes.house import moment, start_instance
from tests.fakes.metering import END, LATER, START, assert_sites_are_their_pools
from tests.oracles import settled_lines

pytestmark = pytest.mark.django_db


@pytest.fixture
def instance(demo_rows):
    service = Service.objects.get()
    return start_instance(service.pools.first(), Node.objects.get(name="loc1-a100"), tp=2)


@pytest.fixture
def site(instance):
    return instance.node.cluster.site


@pytest.fixture
def tenants(instance):
    return metering.quarter_hour(instance)


@pytest.fixture
def house(instance, tenants):
    return instance


def whole(by=(), as_of=None):
    return settled_lines.totals(moment(START), moment(END), by, as_of)


def assert_hours_are_their_lines():
    """What the database keeps by the hour, against the lines of each window's newest revision."""
    expected = {}
    newest = Settlement.objects.order_by("site_id", "start_at", "-revision").distinct("site_id", "start_at")
    for line in StatementLine.objects.filter(settlement__in=list(newest)).exclude(entry="reversal"):
        hour = line.settlement.start_at.replace(minute=0)
        key = (line.settlement.site_id, hour, line.kind, line.pool_id, line.service, line.tenant_id)
        own = expected.setdefault((*key, line.settlement.currency, line.adapter), dict.fromkeys(settlement.AMOUNTS, 0))
        for name in settlement.AMOUNTS:
            own[name] += getattr(line, name)
    found = {
        (row.site_id, row.start_at, row.kind, row.pool_id, row.service, row.tenant_id, row.currency, row.adapter): {
            name: getattr(row, name) for name in settlement.AMOUNTS
        }
        for row in StatementHour.objects.filter(lines__gt=0)
    }
    assert found == expected


def entered(**values):
    rows = EnergyEntry.objects.filter(start_at__lt=moment(END), **values)
    return rows.aggregate(total=Sum("energy_uj"))["total"] or 0


def test_lines_add_up_to_the_entries_exactly_when_settled(house):
    assert settlement.settle(moment(LATER)) == 3
    by_kind = whole(("kind",))
    assert sum(amounts["energy_uj"] for amounts in by_kind.values()) == entered() > 0
    serving = by_kind["serving",]["energy_uj"] + by_kind.get(("unattributed",), {}).get("energy_uj", 0)
    assert serving == entered(kind="serving")
    assert by_kind["idle",]["energy_uj"] == entered(kind="idle")
    shares = RequestShare.objects.aggregate(p=Sum("prefill_uj"), d=Sum("decode_uj"), g=Sum("gpu_us"))
    assert shares["p"] + shares["d"] == by_kind["serving",]["energy_uj"]
    assert shares["p"] == by_kind["serving",]["prefill_uj"] > 0
    assert shares["g"] == by_kind["serving",]["gpu_us"]
    assert (by_kind["serving",]["requests"], by_kind["serving",]["output_tokens"]) == (60, 6_000)
    assert settlement.settle(moment(LATER)) == 0


def test_amounts_are_valued_by_what_holds_in_each_interval_when_settled(house, site):
    settlement.settle(moment(LATER))
    for start, amounts in whole(("start_at",)).items():
        grams = 400.0 if start[0] == moment(START) else 200.0
        energy_uj = amounts["energy_uj"]
        assert amounts["carbon_ug"] == pytest.approx(energy_uj * 1.2 * grams / 3.6e6, rel=1e-6)
        assert amounts["facility_uj"] == pytest.approx(energy_uj * 1.2, rel=1e-9)
        assert amounts["cost_nano"] == pytest.approx(energy_uj * 1.2 * 0.2 / 3.6e12 * 1e9, rel=1e-6)
        assert amounts["gpu_us"] == 2 * 300 * 1_000_000
        assert amounts["rental_nano"] == 600 * 1_800_000_000 // 3_600
        kg = 273.0 + 5_700.0 / 8
        assert amounts["embodied_ug"] == pytest.approx(kg * 1e9 * 600 / (3 * 31_557_600), rel=1e-4)
        assert amounts["carbon_unknown_uj"] == amounts["cost_unknown_uj"] == amounts["rental_unknown_us"] == 0


def test_amounts_are_unknown_and_not_zero_when_no_rate_holds(instance, site):
    metering.intensity(site, START, 150.0, 400.0)
    metering.meters(instance, START + 302)
    settlement.settle(moment(LATER))
    (amounts,) = whole().values()
    assert amounts["carbon_unknown_uj"] == amounts["energy_uj"] // 2
    assert amounts["cost_unknown_uj"] == amounts["energy_uj"]
    assert amounts["rental_unknown_us"] == amounts["gpu_us"]
    assert (amounts["cost_nano"], amounts["rental_nano"]) == (0, 0)


def test_serving_is_unattributed_when_nobody_asked_for_anything(instance):
    metering.meters(instance, START + 302)
    settlement.settle(moment(LATER))
    assert set(whole(("kind", "tenant_id", "pool_id"))) == {("unattributed", None, instance.pool_id)}
    made = Settlement.objects.get()
    assert made.unattributed_uj == made.energy_uj == entered()


def test_restated_point_changes_exactly_its_intervals_when_revised(house, site):
    settlement.settle(moment(LATER))
    version, before = settlement.version(), whole(("start_at",))
    signed = b"".join(settled_lines.export(moment(START), moment(END), version))
    assert settlement.restate(moment(LATER), moment(START)) == 0
    metering.intensity(site, START, 300.0, 500.0, issued_s=START + 5_000)
    assert settlement.restate(moment(LATER), moment(START)) == 1
    after = whole(("start_at",))
    revised = (moment(START),)
    assert {start: after[start] for start in after if start != revised} == {
        start: before[start] for start in before if start != revised
    }
    unchanged = {name for name, value in after[revised].items() if value == before[revised][name]}
    assert set(after[revised]) - unchanged == {"carbon_ug"}
    assert after[revised]["carbon_ug"] == pytest.approx(before[revised]["carbon_ug"] * 500 / 400, rel=1e-6)
    made = Settlement.objects.get(revision=1)
    assert (made.cause, made.shares.revision) == ("carbon", 0)
    assert set(made.lines.values_list("entry", flat=True)) == {"reversal", "restated"}
    assert b"".join(settled_lines.export(moment(START), moment(END), version)) == signed
    assert settled_lines.checksum(moment(START), moment(END), settlement.version()) != settled_lines.checksum(
        moment(START), moment(END), version
    )
    assert settlement.restate(moment(LATER), moment(START)) == 0
    assert_hours_are_their_lines()


def test_hours_are_in_the_new_currency_alone_when_a_site_changes_it(house, site):
    settlement.settle(moment(LATER))
    site.currency = "EUR"
    site.save()
    metering.rates(site)
    assert settlement.restate(moment(LATER), moment(START)) == 3
    assert set(StatementHour.objects.filter(lines__gt=0).values_list("currency", flat=True)) == {"EUR"}
    assert_hours_are_their_lines()


REVISIONS = st.dictionaries(st.integers(0, 14), st.none() | st.floats(1.0, 900.0), min_size=1, max_size=6)


def test_rollups_have_the_carbon_of_the_settlement_when_it_is_made_and_restated(house, site):
    def rolled_up():
        sums = EnergyRollup.objects.values("step_s").annotate(g=Sum("carbon_gco2e"), uj=Sum("unknown_uj"))
        return {row["step_s"]: (row["g"], row["uj"]) for row in sums.filter(start_at__lt=moment(END))}

    def settled():
        lines = StatementLine.objects.aggregate(ug=Sum("carbon_ug"), uj=Sum("carbon_unknown_uj"))
        # of hours and days, energy after the last settled window too, of which nothing is known
        return pytest.approx(lines["ug"] / 1e6, rel=1e-6), lines["uj"]

    EnergyRollup.objects.update(carbon_gco2e=0.0, unknown_uj=F("energy_uj"))  # posted before the feed said anything
    settlement.settle(moment(LATER))
    first = rolled_up()
    assert first[60] == settled()
    assert first[600] == settled()
    assert first[3_600][0] == first[86_400][0] == settled()[0]
    metering.intensity(site, START, 300.0, None, issued_s=START + 5_000)
    metering.intensity(site, START + 300, 300.0, 500.0, issued_s=START + 5_000)
    assert settlement.restate(moment(LATER), moment(START)) == 2
    after = rolled_up()
    assert after[60] == settled() != first[60]
    assert after[86_400][0] == settled()[0]
    assert_sites_are_their_pools()
    assert settlement.restate(moment(LATER), moment(START)) == 0


@given(st.lists(REVISIONS, min_size=1, max_size=3))
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_restated_points_change_exactly_their_intervals_when_any_are_revised(instance, site, rounds):
    """Points of a minute each; every GPU draws the same, so a minute's grams follow from its point."""
    if not Settlement.objects.exists():
        metering.rates(site)
        for minute in range(15):
            metering.intensity(site, START + 60 * minute, 60.0, 100.0)
        metering.meters(instance, END + 2, running=lambda at_s: 0)
        settlement.settle(moment(LATER))
    held = newest(site)
    for revisions in rounds:
        before, version = whole(("start_at",)), settlement.version()
        signed = settled_lines.checksum(moment(START), moment(END), version)
        for minute, value in revisions.items():
            metering.intensity(site, START + 60 * minute, 60.0, value, issued_s=next(ISSUES))
        touched = {moment(START + 300 * (m // 5)) for m, value in revisions.items() if value != held[m]}
        assert settlement.restate(moment(LATER), moment(START)) == len(touched)
        held = newest(site)
        after = whole(("start_at",))
        assert {key[0] for key in after if after[key] != before[key]} == touched
        for n in range(3):
            amounts, points = after[(moment(START + 300 * n),)], held[5 * n : 5 * n + 5]
            grams = sum(36_000.0 * 1.2 * value / 3.6e6 for value in points if value is not None)
            assert amounts["carbon_ug"] == pytest.approx(grams * 1e6, abs=100)
            assert amounts["carbon_unknown_uj"] == 36_000_000_000 * points.count(None)
        assert settled_lines.checksum(moment(START), moment(END), version) == signed
        assert_hours_are_their_lines()


ISSUES = itertools.count(START + 5_000)


def newest(site):
    rows = CarbonPoint.objects.filter(feed__site=site, start_at__gte=moment(START)).order_by("start_at", "issued_at")
    return list(dict(rows.values_list("start_at", "value_g_per_kwh")).values())


def test_nothing_is_restated_when_a_new_point_says_the_same(house, site):
    settlement.settle(moment(LATER))
    metering.intensity(site, START, 300.0, 400.0, issued_s=START + 5_000)
    assert settlement.restate(moment(LATER), moment(START)) == 0


def test_windows_are_restated_when_a_tariff_for_the_past_is_entered(house, site):
    settlement.settle(moment(LATER))
    before = whole(("start_at",))
    metering.Tariff.objects.create(
        site=site,
        currency=site.currency,
        price_per_kwh=0.3,
        valid_from=moment(START + 300),
        valid_to=moment(START + 600),
        source="the supplier's letter",
        version="2",
    )
    assert settlement.restate(moment(LATER), moment(START)) == 1
    after = whole(("start_at",))
    changed = {start: name for start in after for name in after[start] if after[start][name] != before[start][name]}
    assert changed == {(moment(START + 300),): "cost_nano"}
    assert Settlement.objects.get(revision=1).sources["tariff"][2:] == ["the supplier's letter", "2"]


def test_shares_are_made_again_when_a_request_comes_in_late(house, tenants, monkeypatch):
    settlement.settle(moment(LATER))
    version = settlement.version()
    kept = whole(("kind",))
    monkeypatch.setattr(window_sources, "LATE", timedelta(days=36_500))
    late = metering.request(house, START + 350, "late", tenants[0], output_tokens=900, e2e_s=40.0)
    assert settlement.restate(moment(LATER), moment(START)) == 2
    assert settled_reader.of_request(late, version) == settled_reader.RequestUse(False, 123.0)
    use = settled_reader.of_request(late)
    assert use.measured
    assert use.energy_j > 1_000.0
    assert sum(a["energy_uj"] for a in whole(("kind",)).values()) == sum(a["energy_uj"] for a in kept.values())


def test_request_has_its_share_in_place_of_the_prediction_when_settled(house):
    record = RequestRecord.objects.get(request_id="r40")
    assert settled_reader.of_request(record) == settled_reader.RequestUse(False, 123.0)
    settlement.settle(moment(LATER))
    use = settled_reader.of_request(record)
    assert use.measured
    assert use.energy_j == pytest.approx(use.prefill_j + use.decode_j)
    assert use.carbon_gco2e == pytest.approx(use.energy_j * 1.2 * 200 / 3.6e6, rel=1e-4)
    assert use.cost == pytest.approx(use.energy_j * 1.2 * 0.2 / 3.6e6, rel=1e-4)


def test_lines_are_refused_a_change_when_somebody_tries(house):
    settlement.settle(moment(LATER))
    for row in (StatementLine.objects.first(), Settlement.objects.first()):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            type(row).objects.filter(pk=row.pk).update(energy_uj=0)


def test_demand_is_charged_by_the_months_peak_quarter_when_the_tariff_has_a_charge(house, site):
    metering.Tariff.objects.create(
        site=site,
        currency=site.currency,
        price_per_kwh=0.2,
        demand_per_kw=9.0,
        valid_from=moment(START - 3_600),
        source="a test",
        version="2",
    )
    settlement.settle(moment(LATER))
    found = settled_reader.peak(site, moment(START).astimezone(ZoneInfo(site.time_zone)).date())
    assert found.start_at == moment(START)
    assert found.power_w == pytest.approx(2 * 300 * 1.2, rel=1e-6)
    assert found.charge == pytest.approx(9.0 * 0.72, rel=1e-6)


def test_carbon_of_series_is_the_lines_to_the_digit_when_an_intensity_is_revised(instance, site):
    metering.intensity(site, START, 900.0, 401.237)
    metering.rates(site)
    metering.meters(instance, END + 2, power_w=lambda at_s: 300.007)

    def shown_ug(step_s: float = 60.0) -> int:
        sums = selectors.ledger_sums(TimeRange(START, END, step_s), LATER).sites
        return sum(ug or 0 for one in sums for kind in one.kinds.values() for ug in kind.carbon_ug)

    posted_ug = shown_ug()
    assert [shown_ug(step_s) for step_s in (300.0, 900.0, 3_600.0)] == [posted_ug] * 3
    settlement.settle(moment(LATER))
    first_ug = StatementLine.objects.aggregate(ug=Sum("carbon_ug"))["ug"]
    assert (shown_ug(), posted_ug) == (first_ug, first_ug)
    metering.intensity(site, START, 300.0, 333.333, issued_s=LATER)
    settlement.restate(moment(LATER + 10))
    revised_ug = StatementLine.objects.aggregate(ug=Sum("carbon_ug"))["ug"]
    assert revised_ug != first_ug
    assert shown_ug() == revised_ug
