"""Alerts of budgets: what is used, what the month comes to, what is not known; whom they are for; what they cost."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pools.models import Pool
from telemetry.alerts import alert_settings, budgets, evaluation, notices
from telemetry.alerts.alert_state_machine import Reading
from telemetry.models import Alert, AlertNotice, Budget, Settlement, StatementLine
from telemetry.providers.secrets import Secret
from tests.fakes import seed
from tests.fakes.people import person
from tests.fakes.sink import receiving

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 20, 18, 10, tzinfo=UTC)
UNTIL = datetime(2026, 3, 20, 18, tzinfo=UTC)
SUBJECT = "acme/2026-03"
DAILY = 4  # USD and kg of each day: four windows of a dollar and a kilogram
SO_FAR = 19 * DAILY + 3


@pytest.fixture
def seeded(settings, redis_client) -> seed.Seeded:
    """acme takes 4 USD and 4 kgCO2e each day since 1 March; nothing else is watched."""
    cache.clear()
    settings.GREENSERVE_ALERTS = {**settings.GREENSERVE_ALERTS, "sources": ("telemetry.alerts.budgets.BUDGETS",)}
    found = seed.fleet(NOW)
    at = datetime(2026, 3, 1, tzinfo=UTC)
    while at < UNTIL:
        use(found, at)
        at += timedelta(hours=6)
    return found


def use(seeded: seed.Seeded, at: datetime, kg: float = 1.0, usd: float = 1.0, unknown: bool = False) -> None:
    pool = Pool.objects.filter(site=seeded.sites[0]).order_by("pk")[0]
    window = Settlement.objects.create(
        site=pool.site, start_at=at, end_at=at + timedelta(hours=6), revision=0, cause="", sources={},
        currency="USD", energy_uj=1, unattributed_uj=0,
    )  # fmt: skip
    StatementLine.objects.create(
        settlement=window, entry="original", kind="serving", pool=pool, service="llama3-70b", tenant=seeded.tenants[0],
        energy_uj=3_600_000, facility_uj=3_600_000, gpu_us=1_000_000, carbon_ug=round(kg * 1e9),
        carbon_unknown_uj=100 if unknown else 0, cost_nano=round(usd * 1e9), rental_unknown_us=1_000_000,
    )  # fmt: skip


def budget(seeded: seed.Seeded, **given) -> Budget:
    return Budget.objects.create(tenant=seeded.tenants[0], **given)


def read(now: datetime = NOW) -> list[Reading]:
    return list(budgets.BUDGETS.read(now, alert_settings.all_rules()))


def look(now: datetime = NOW) -> dict[str, Alert]:
    evaluation.run(now)
    return {alert.rule: alert for alert in evaluation.open_alerts()}


def test_budget_that_lasts_opens_no_alert(seeded):
    budget(seeded, amount=400, currency="USD", carbon_kg=400)
    assert look() == {}


def test_budget_warns_from_four_fifths_on_and_is_critical_when_used_up(seeded):
    own = budget(seeded, amount=90, currency="USD", carbon_kg=1000)
    found = look()["budget_used"]
    assert (found.subject, found.level, found.unit) == (SUBJECT, "warn", "share")
    assert found.value == pytest.approx(SO_FAR / 90)
    assert found.summary == (
        "Budget of Acme, March 2026: 88 % of the money is used, 79.00 of 90.00 USD; 8 % of the carbon is used, 79.00 "
        "of 1,000.00 kgCO₂e (settled until 20 March 18:00 UTC)"
    )
    assert "tenant's page" in found.step
    Budget.objects.filter(pk=own.pk).update(amount=79)
    found = look(NOW + timedelta(seconds=15))["budget_used"]
    assert (found.level, found.value) == ("bad", pytest.approx(1.0))


def test_fuller_side_of_a_budget_counts_when_it_has_two(seeded):
    budget(seeded, amount=1000, currency="USD", carbon_kg=90)
    found = look()["budget_used"]
    assert found.value == pytest.approx(SO_FAR / 90)
    assert found.summary.startswith(
        "Budget of Acme, March 2026: 88 % of the carbon is used, 79.00 of 90.00 kgCO₂e; 8 %"
    )


def test_forecast_warns_with_the_day_on_which_the_budget_is_used_up(seeded):
    budget(seeded, amount=110, currency="USD")
    found = look()
    assert set(found) == {"budget_forecast"}
    alert = found["budget_forecast"]
    assert (alert.subject, alert.level) == (SUBJECT, "warn")
    assert alert.value == pytest.approx(31 * DAILY / 110)
    assert alert.summary == (
        "Budget of Acme, March 2026, by the forecast (modelled): 113 % of the money, 124.00 of 110.00 USD, at the pace "
        "of the newest 7 days; used up on 28 March"
    )


def test_forecast_of_fewer_than_three_days_opens_no_alert(settings, redis_client):
    cache.clear()
    settings.GREENSERVE_ALERTS = {**settings.GREENSERVE_ALERTS, "sources": ("telemetry.alerts.budgets.BUDGETS",)}
    young = seed.fleet(NOW)
    for n in range(8):
        use(young, UNTIL - timedelta(hours=48 - 6 * n))
    budget(young, amount=20, currency="USD")
    used, forecast = budgets.BUDGETS.read(NOW, alert_settings.all_rules())
    assert (used.value, forecast.value) == (pytest.approx(8 / 20), None)
    assert "for the money there is no forecast" in forecast.summary
    assert look() == {}


def test_side_that_is_not_known_opens_no_alert_and_ends_none(seeded):
    own = budget(seeded, carbon_kg=90)
    use(seeded, UNTIL, kg=30.0, unknown=True)
    assert look() == {}
    (reading, forecast) = read()
    assert (reading.value, forecast.value) == (None, None)
    assert "of the carbon it is not known: an intensity is missing" in reading.summary
    Budget.objects.filter(pk=own.pk).update(amount=81, currency="USD")
    found = look(NOW + timedelta(seconds=15))
    assert found["budget_used"].summary.endswith(
        "of the carbon it is not known: an intensity is missing (settled until 21 March 00:00 UTC)"
    ), "the other side is enough to raise one"
    Budget.objects.filter(pk=own.pk).update(amount=1000)
    later = NOW + timedelta(seconds=30)
    for _ in range(10):
        later += timedelta(seconds=15)
        assert look(later)["budget_used"].value is None, "and not to end one"


def test_month_of_which_nothing_is_settled_is_not_known(seeded):
    budget(seeded, amount=1, currency="USD")
    at = datetime(2026, 4, 1, 0, 1, tzinfo=UTC)
    assert look(at) == {}
    assert {one.value for one in read(at)} == {None}


def test_alerts_end_at_the_months_turn_and_when_a_budget_is_taken_away(seeded):
    own = budget(seeded, amount=90, currency="USD")
    assert set(look()) == {"budget_used", "budget_forecast"}
    at = datetime(2026, 4, 1, 0, 0, 5, tzinfo=UTC)
    for _ in range(44):
        look(at)
        at += timedelta(seconds=15)
    assert set(look(at)) == set()
    assert Alert.objects.filter(subject=SUBJECT, state="resolved").count() == 2
    Alert.objects.all().delete()
    assert set(look(NOW + timedelta(days=40))) == set()
    own.delete()
    assert read() == []


def test_value_that_falls_a_little_below_the_threshold_keeps_its_alert(seeded):
    own = budget(seeded, amount=98, currency="USD")
    assert "budget_used" in look()
    Budget.objects.filter(pk=own.pk).update(amount=100)  # 79 %: below the threshold, above `clear`
    at = NOW
    for _ in range(8):
        at += timedelta(seconds=15)
        assert "budget_used" in look(at)
    Budget.objects.filter(pk=own.pk).update(amount=104)  # 76 %
    for _ in range(8):
        at += timedelta(seconds=15)
        found = look(at)
    assert "budget_used" not in found


def test_people_are_notified_of_the_warning_and_again_when_it_becomes_critical(seeded, settings):
    with receiving() as sink:
        settings.GREENSERVE_ALERTS = {
            **settings.GREENSERVE_ALERTS,
            "webhook_url": Secret(f"{sink.url}/hook"),
            "webhook_secret": None,
            "webhook_private": True,
        }
        own = budget(seeded, amount=90, currency="USD")
        Budget.objects.filter(pk=own.pk).update(amount=90)
        for n, amount in enumerate((90, 90, 79, 79, 90, 79, 400, 400, 400, 400, 400, 400, 400)):
            Budget.objects.filter(pk=own.pk).update(amount=amount)
            now = NOW + n * timedelta(seconds=15)
            evaluation.run(now)
            notices.deliver(now)
        sent = [json.loads(one.body) for one in sink.received]
    used = [(one["event"], one["alert"]["level"]) for one in sent if one["alert"]["rule"] == "budget_used"]
    assert used == [("raised", "warn"), ("raised", "bad"), ("resolved", "bad")]
    assert AlertNotice.objects.filter(alert__rule="budget_used", event="resolved").count() == 1


def test_only_who_may_see_all_sites_sees_them(seeded):
    budget(seeded, amount=90, currency="USD")
    alert = look()["budget_used"]
    whole, own = Client(), Client()
    whole.force_login(person("finance"))
    own.force_login(person("operator", "here", sites=[seeded.sites[0]]))
    for path in ("/alerts/", "/api/v1/alerts/"):
        assert SUBJECT in whole.get(path).content.decode()
        assert SUBJECT not in own.get(path).content.decode()
    assert 'href="/tenants/acme/?month=2026-03"' in whole.get("/alerts/").content.decode()
    assert own.post(f"/alerts/{alert.pk}/acknowledge/").status_code == 404
    silence = {"rule": "budget_used", "subject": f"{seeded.sites[0].name}/2026-03", "for_s": 600}
    assert own.post("/api/v1/alert-silences/", silence, content_type="application/json").status_code == 403
    assert own.post("/alerts/silences/", silence).status_code == 403


def test_sums_are_not_read_again_within_five_minutes_unless_a_budget_changes(seeded):
    own = budget(seeded, amount=90, currency="USD")
    first = read()
    with CaptureQueriesContext(connection) as queries:
        assert read() == first
    assert len(queries) == 1, "the budgets alone"
    Budget.objects.filter(pk=own.pk).update(amount=70)
    with CaptureQueriesContext(connection) as queries:
        assert read() != first
    assert len(queries) <= 8, "whole days and the newest seven are kept"


def test_forecast_is_the_pages(seeded):
    budget(seeded, amount=110, currency="USD")
    (alert,) = look().values()
    client = Client()
    client.force_login(person("administrator"))
    page = client.get("/tenants/acme/?month=2026-03").content.decode()
    assert "124.00 USD" in page
    assert "28 Mar" in page
    assert alert.value == pytest.approx(124 / 110)
