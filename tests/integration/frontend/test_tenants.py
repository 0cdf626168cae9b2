"""Tenants' pages and REST: the figures of a report of the same hours, forecast and budget, and who sees whom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from frontend.tenants import month as months
from pools.models import Pool, Tenant
from telemetry.models import Budget, Settlement, StatementLine
from telemetry.report_values.basis import Basis
from telemetry.report_values.period import parse_period
from telemetry.report_values.report_request import ReportRequest
from telemetry.report_values.table import COLUMNS
from telemetry.reports import ledger_source, settled_lines, tenant_use
from telemetry.reports.ledger_source import Scope
from telemetry.reports.writers.files import empty_totals
from tests.fakes import seed
from tests.fakes.people import person

START, UNTIL = datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 20, 18, tzinfo=UTC)
SETTLED = "?month=2026-03"


@pytest.fixture(scope="module")
def seeded(shared_rows) -> seed.Seeded:
    """Every six hours a line of each of two tenants at two sites: 1 Wh and 2 Wh, dearer each day; one is idle."""
    found = seed.fleet(UNTIL)
    pools = [Pool.objects.filter(site=site).order_by("pk").first() for site in found.sites[:2]]
    at, lines = START, []
    while at < UNTIL:
        for pool in pools:
            window = Settlement.objects.create(
                site=pool.site, start_at=at, end_at=at + timedelta(hours=6), revision=0, cause="", sources={},
                currency="USD", energy_uj=1, unattributed_uj=0,
            )  # fmt: skip
            for n, tenant in enumerate(found.tenants[:2]):
                if n and pool == pools[1]:
                    continue  # the second tenant is at the first site alone
                lines.append(_line(window, pool, tenant, 3_600_000_001 * (n + 1), at))
            lines.append(_line(window, pool, None, 7_200_000_000, at))
        at += timedelta(hours=6)
    StatementLine.objects.bulk_create(lines)
    return found


def _line(window, pool, tenant, energy_uj: int, at: datetime) -> StatementLine:
    unknown_uj = energy_uj // 3 if at.day == 5 and pool.site.rank == 0 else 0  # of one day an intensity is missing
    rented = pool.site.rank == 0
    return StatementLine(
        settlement=window,
        entry="original",
        kind="serving" if tenant else "idle",
        pool=pool,
        service=pool.service.name if tenant else "",
        tenant=tenant,
        energy_uj=energy_uj,
        facility_uj=energy_uj * 6 // 5,
        gpu_us=1_000_000,
        carbon_ug=(energy_uj - unknown_uj) // 9_001,
        carbon_unknown_uj=unknown_uj,
        cost_nano=energy_uj // 1_003 * at.day,
        rental_nano=500_000_007 if rented else 0,
        rental_unknown_us=0 if rented else 1_000_000,  # the second site has no rate for GPU-hours at all
        output_tokens=100,
    )


@pytest.fixture
def client(seeded, db, redis_client) -> Client:
    cache.clear()
    found = Client()
    found.force_login(person("administrator"))
    return found


def _reported(by: tuple[str, ...], first: str, last: str) -> dict:
    """The same hours as a report has them: name of the group -> its cells."""
    sites = tuple(Settlement.objects.values_list("site", flat=True).distinct())
    scope = Scope(parse_period(f"{first}/{last}"), ledger_source.newest_version(), sites)
    basis = Basis(
        number=1, revision=0, ledger_version=scope.version, made_s=0, organisation="", product="",
        settled_until_s=0, sites=ledger_source.site_bases(scope), pools=ledger_source.pool_bases(sites),
        tenants=ledger_source.tenant_bases(), contracts=(), slo=(), meters=(),
    )  # fmt: skip
    totals = empty_totals(ReportRequest(f"{first}/{last}", by=by), basis, scope.period)
    for block in settled_lines.blocks(scope, basis):
        totals.add(block)
    return {group.key: {column.name: column.cell(group) for column in COLUMNS} for group in totals.rows()}


def test_use_is_a_reports_to_the_digit(client, seeded):
    first, last = "2026-03-01", "2026-03-20"
    expected = _reported(("tenant", "site", "service"), first, last)
    for tenant in seeded.tenants[:2]:
        body = client.get(
            f"/api/v1/tenants/{tenant.name}/use/", {"from": first, "to": last, "by": "site,service"}
        ).json()
        own = {key[1:]: cells for key, cells in expected.items() if key[0] == tenant.name}
        rows = {(row.pop("site"), row.pop("service")): row for row in body["rows"]}
        assert set(rows) == set(own)
        for key, row in rows.items():
            assert row.pop("currency") == "USD"
            assert row == {name: own[key][name] for name in row}
    assert body["rows"][0]["scope2_location_kgco2e"] is None, "of one day an intensity is missing"
    assert body["rows"][0]["without_intensity_kwh"] != "0"


def test_days_add_up_to_the_total(client, seeded):
    name = seeded.tenants[0].name
    body = client.get(f"/api/v1/tenants/{name}/use/", {"from": "2026-03-01", "by": "day", "to": "2026-04-01"}).json()
    assert body["settled_until"] == "2026-03-20T18:00:00Z"
    assert [row["day"] for row in body["rows"]] == [f"2026-03-{day:02}" for day in range(1, 21)]
    (total,) = body["totals"]
    assert sum(int(row["output_tokens"]) for row in body["rows"]) == int(total["output_tokens"])
    assert (body["rows"][4]["cost"], body["rows"][4]["scope2_location_kgco2e"]) != (None, "0")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"from": "soon"}, "from"),
        ({"from": "2026-03-01T00:30:00Z"}, "from"),
        ({"from": "2026-03-02", "to": "2026-03-01"}, "from"),
        ({"by": "pool"}, "by"),
        ({"colour": "green"}, "colour"),
    ],
)
def test_question_is_refused_by_field_when_it_makes_no_sense(client, seeded, query, field):
    answer = client.get(f"/api/v1/tenants/{seeded.tenants[0].name}/use/", query)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)
    assert client.get("/api/v1/tenants/nobody/use/").status_code == 404


def test_list_has_each_tenants_month_and_links_to_its_page(client, seeded):
    page = client.get(f"/tenants/{SETTLED}").content.decode()
    name = seeded.tenants[0].name
    assert f'href="/tenants/{name}/?month=2026-03"' in page
    month = months.month_of(datetime(2026, 3, 1, tzinfo=UTC), [site.pk for site in seeded.sites])
    rows = {row.name: row for row in months.tenant_rows(month, every=True)}
    windows = 19 * 4 + 3
    assert rows[name].figures.energy_j == pytest.approx(2 * windows * 3_600.000001)
    assert rows[name].figures.carbon_g is None, "a part is not known"
    assert rows[seeded.tenants[2].name].figures.energy_j == 0, "those that used nothing are listed too"


def test_page_compares_with_the_same_days_and_foretells_the_month(client, seeded):
    tenant = seeded.tenants[1]
    Budget.objects.create(tenant=tenant, amount=60, currency="USD", carbon_kg=1)
    month = months.month_of(datetime(2026, 3, 1, tzinfo=UTC), [site.pk for site in seeded.sites])
    energy, carbon, cost = months.quantities(month, tenant, tenant.budget, months.month_uses(month, tenant))
    windows = 19 * 4 + 3
    assert energy.so_far == pytest.approx(windows * 2.0000000006)
    assert energy.before == pytest.approx(energy.so_far), "as many days of February"
    assert energy.change == pytest.approx(0.0)
    assert energy.forecast.value == pytest.approx(31 * 4 * 2.0, rel=1e-6)
    assert energy.forecast.high - energy.forecast.low < 1e-6, "each day is as the others"
    assert (carbon.so_far, carbon.forecast, carbon.used) == (None, None, None)
    assert cost.unit == "USD"
    assert cost.used == pytest.approx(cost.so_far / 60)
    assert month.until < cost.used_up_at < month.end
    page = client.get(f"/tenants/{tenant.name}/{SETTLED}").content.decode()
    assert "Settled up to 20 Mar 18:00" in page
    assert f"{cost.so_far:.2f} USD" in page
    figures = client.get(f"/tenants/{tenant.name}/figures.json{SETTLED}").json()["figures"]
    assert set(figures) == {"energy", "carbon", "cost"}
    assert len([value for value in figures["energy"]["data"][0]["y"] if value is not None]) == 28 + 19


def test_month_without_a_settled_window_is_not_known_rather_than_zero(client, seeded):
    month = months.month_of(datetime(2026, 4, 1, tzinfo=UTC), [site.pk for site in seeded.sites])
    tenant = seeded.tenants[1]
    lines = months.quantities(month, tenant, None, months.month_uses(month, tenant))
    assert {line.so_far for line in lines} == {None}
    figures = client.get(f"/tenants/{seeded.tenants[1].name}/figures.json?month=2026-04").json()["figures"]
    assert figures["energy"]["meta"]["until"] == "2026-03-21 00:00:00", "the end of the last day on record"


def test_only_tenants_of_own_sites_are_seen_and_only_what_they_used_there(client, seeded):
    own = Client()
    own.force_login(person("viewer", "here", sites=[seeded.sites[1]]))
    cache.clear()
    both, first_only = seeded.tenants[:2]
    assert own.get(f"/tenants/{both.name}/{SETTLED}").status_code == 200
    assert own.get(f"/tenants/{first_only.name}/{SETTLED}").status_code == 404
    assert own.get(f"/api/v1/tenants/{first_only.name}/use/?from=2026-03-01&to=2026-04-01").status_code == 404
    body = own.get(f"/api/v1/tenants/{both.name}/use/?from=2026-03-01&to=2026-04-01&by=site").json()
    assert [row["site"] for row in body["rows"]] == [seeded.sites[1].name]
    assert first_only.name not in own.get(f"/tenants/{SETTLED}").content.decode()


def test_month_is_utcs_whichever_zone_the_reader_is_in(client, seeded):
    page = client.get(f"/tenants/{SETTLED}&zone=America/New_York").content.decode()
    assert "March 2026 (UTC)" in page


def test_overview_names_the_tenants_with_their_page(client, seeded, monkeypatch):
    monkeypatch.setattr(months, "month_start", lambda at: datetime(2026, 3, 1, tzinfo=UTC))
    assert "/tenants/this-month/" in client.get("/").content.decode()
    table = client.get("/tenants/this-month/").content.decode()
    assert f'href="/tenants/{seeded.tenants[0].name}/"' in table


def test_hours_that_are_not_whole_are_no_span():
    at = datetime(2026, 3, 1, 0, 30, tzinfo=UTC)
    with pytest.raises(ValueError, match="whole hours"):
        tenant_use.HourSpan(at, at + timedelta(hours=1), (1,))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "amount"),
        ({"amount": "10"}, "currency"),
        ({"amount": "10", "currency": "usd"}, "currency"),
        ({"carbon_kg": "-1"}, "carbon_kg"),
        ({"energy_kwh": "0"}, "energy_kwh"),
        ({"tokens": 0}, "tokens"),
        ({"tokens": 10**16}, "tokens"),
        ({"refuses": True}, "amount"),
        ({"carbon_kg": "1", "currency": "USD"}, "currency"),
    ],
)
def test_budget_is_refused_by_field_when_it_makes_no_sense(client, seeded, given, field):
    body = {"tenant": seeded.tenants[2].name, **given}
    answer = client.post("/api/v1/budgets/", body, content_type="application/json")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)


def test_budget_is_set_by_rest(client, seeded):
    body = {"tenant": seeded.tenants[2].name, "amount": "12.50", "currency": "USD"}
    assert client.post("/api/v1/budgets/", body, content_type="application/json").status_code == 201
    assert str(Budget.objects.get(tenant=seeded.tenants[2]).amount) == "12.50"


def test_budget_of_energy_and_tokens_that_refuses_is_shown_with_what_is_used(client, seeded):
    tenant = Tenant.objects.get(pk=seeded.tenants[1].pk)  # the shared one may know an earlier budget
    body = {"tenant": tenant.name, "energy_kwh": "0.01", "tokens": 1000, "refuses": True}
    made = client.post("/api/v1/budgets/", body, content_type="application/json")
    assert made.status_code == 201, made.content
    assert (made.json()["energy_kwh"], made.json()["tokens"], made.json()["refuses"]) == ("0.01", 1000, True)
    month = months.month_of(datetime(2026, 3, 1, tzinfo=UTC), [site.pk for site in seeded.sites])
    energy, _, tokens, _ = months.quantities(month, tenant, tenant.budget, months.month_uses(month, tenant))
    assert energy.used == pytest.approx(energy.so_far / 10)
    assert (tokens.name, tokens.budget) == ("Tokens", 1000)
    page = client.get(f"/tenants/{tenant.name}/{SETTLED}").content.decode()
    assert "gateways refuse its requests until the month ends" in page
    (row,) = (row for row in months.tenant_rows(month, every=True) if row.name == tenant.name)
    assert [name for name, _ in row.used] == ["energy", "tokens"]
    assert "% of energy" in client.get(f"/tenants/{SETTLED}").content.decode()


def test_whole_days_are_added_up_once_until_one_is_settled_anew(client, seeded):
    month = months.month_of(datetime(2026, 3, 1, tzinfo=UTC), [site.pk for site in seeded.sites])
    first = months.tenant_rows(month, every=True)
    with CaptureQueriesContext(connection) as queries:
        assert months.tenant_rows(month, every=True) == first
    assert len(queries) == 5
    window = Settlement.objects.get(site=seeded.sites[0], start_at=datetime(2026, 3, 2, tzinfo=UTC))
    again = Settlement.objects.create(
        site=window.site, start_at=window.start_at, end_at=window.end_at, revision=1, cause="more", sources={},
        currency="USD", energy_uj=1, unattributed_uj=0,
    )  # fmt: skip
    line = _line(
        again, Pool.objects.filter(site=window.site).first(), seeded.tenants[0], 7_200_000_000, window.start_at
    )
    line.entry = "restated"
    line.save()
    rows = {row.name: row for row in months.tenant_rows(month, every=True)}
    before = next(row for row in first if row.name == seeded.tenants[0].name)
    assert rows[before.name].figures.energy_j == pytest.approx(before.figures.energy_j + 7_200)
