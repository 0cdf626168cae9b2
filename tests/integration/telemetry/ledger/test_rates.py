"""Tariffs, rates, factors and PUE: which version holds, and what is refused by name."""

from datetime import timedelta

import numpy as np
import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection, transaction

from pools.models import Site
from telemetry.ledger.rates import DEFAULT_EMBODIED, Rates
from telemetry.models import EmbodiedFactor, GpuRate, Instrument, Pue, ReportSchedule, Tariff
from telemetry.storage import copying
from tests.fakes.house import moment

pytestmark = pytest.mark.django_db
AT = moment(1_767_225_600.0)
NAMED = {"valid_from": AT, "source": "a contract", "version": "1"}


@pytest.fixture
def site(demo_rows):
    return Site.objects.get(name="location-1")


def tariff(site, price, **values):
    return Tariff.objects.create(site=site, currency=site.currency, price_per_kwh=price, **{**NAMED, **values})


def test_what_began_last_holds_and_of_these_what_was_entered_last(site):
    tariff(site, 0.1)
    tariff(site, 0.2, valid_from=AT + timedelta(days=1), valid_to=AT + timedelta(days=2))
    tariff(site, 0.3)
    rates = Rates.of(site)
    assert rates.at(AT - timedelta(seconds=1)).terms is None
    days = [rates.at(AT + timedelta(days=n)).terms.price_per_kwh for n in range(3)]
    assert days == [0.3, 0.2, 0.3]


def test_defaults_hold_with_their_source_when_nothing_was_entered(site):
    found = Rates.of(site).at(AT)
    assert (found.pue, found.terms, found.rates) == (site.pue, None, {})
    assert found.factors[""] is DEFAULT_EMBODIED
    assert found.cost_nano_per_uj(AT.timestamp()) is None
    assert found.rental_nano_per_us("A100-80GB") is None
    assert "Uptime" in found.sources["pue"][2]
    assert "EcoLogits" in found.sources["embodied"][""][2]


def test_sites_own_rate_and_the_types_own_factor_hold_when_there_are_several(site):
    GpuRate.objects.create(gpu_type="A", currency=site.currency, rate_per_gpu_hour=2.0, **NAMED)
    GpuRate.objects.create(site=site, gpu_type="A", currency=site.currency, rate_per_gpu_hour=1.0, **NAMED)
    GpuRate.objects.create(gpu_type="B", currency="XTS", rate_per_gpu_hour=9.0, **NAMED)
    EmbodiedFactor.objects.create(gpu_type="A", gpu_kg=1_312.0, lifespan_years=4.0, **NAMED)
    Pue.objects.create(site=site, value=1.1, **NAMED)
    found = Rates.of(site).at(AT)
    assert (dict(found.rates), found.pue) == ({"A": 1.0}, 1.1)
    assert found.embodied_ug_per_us("A") * 3.6e9 == pytest.approx(1_312e9 / (4 * 365.25 * 24))
    assert found.embodied_ug_per_us("B") != found.embodied_ug_per_us("A")


@pytest.mark.parametrize(
    ("made", "field", "said"),
    [
        (lambda s: Tariff(site=s, currency="XTS", price_per_kwh=0.1, **NAMED), "currency", "sums need one currency"),
        (
            lambda s: Tariff(site=s, currency=s.currency, price_per_kwh=float("nan"), **NAMED),
            "price_per_kwh",
            "a number",
        ),
        (
            lambda s: Tariff(site=s, currency=s.currency, price_per_kwh=0.1, windows=[{"from": "x"}], **NAMED),
            "windows",
            "07:00",
        ),
        (
            lambda s: Tariff(site=s, currency=s.currency, price_per_kwh=0.1, demand_per_kw=-1, **NAMED),
            "demand_per_kw",
            "least 0",
        ),
        (
            lambda s: Tariff(site=s, currency=s.currency, price_per_kwh=0.1, valid_to=AT, **NAMED),
            "valid_to",
            "later than",
        ),
        (
            lambda s: GpuRate(site=s, gpu_type="A", currency="XTS", rate_per_gpu_hour=1.0, **NAMED),
            "currency",
            "one currency",
        ),
        (
            lambda s: GpuRate(gpu_type="A", currency="USD", rate_per_gpu_hour=-1.0, **NAMED),
            "rate_per_gpu_hour",
            "at least 0",
        ),
        (lambda s: EmbodiedFactor(gpu_kg=-1.0, lifespan_years=3.0, **NAMED), "gpu_kg", "at least 0"),
        (lambda s: EmbodiedFactor(gpu_kg=1.0, lifespan_years=0.0, **NAMED), "lifespan_years", "at least"),
        (lambda s: Pue(site=s, value=0.9, **NAMED), "value", "at least 1"),
        (lambda s: Pue(site=s, value=1e30, **NAMED), "value", "at most 10"),
    ],
)
def test_value_is_refused_by_name_when_it_makes_no_sense(site, made, field, said):
    with pytest.raises(ValidationError) as refused:
        made(site).full_clean()
    assert said in " ".join(refused.value.message_dict[field])


def test_version_is_refused_a_change_when_somebody_tries(site):
    row = tariff(site, 0.1)
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        Tariff.objects.filter(pk=row.pk).update(price_per_kwh=0.2)


def test_columns_come_back_as_they_were_when_copied():
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE copied (n bigint, x float8, at timestamptz, word text, note text)")
    count = 50
    at_us = np.arange(count) * 86_399_999_999 + 7
    columns = [
        copying.Column("n", copying.BIGINT, np.arange(count)),
        copying.floats("x", [None if n % 3 else n / 7 for n in range(count)]),
        copying.moments("at", at_us),
        copying.words("word", [(None, "", "serving", "größer")[n % 4] for n in range(count)]),
        copying.text("note", ["é" * (n % 5) + str(n) for n in range(count)]),
    ]
    copying.write("copied", columns)
    with connection.cursor() as cursor:
        cursor.execute("SELECT n, x, word, note FROM copied ORDER BY n")
        rows = cursor.fetchall()
    for n, (number, x, word, note) in enumerate(rows):
        assert (number, x) == (n, None if n % 3 else n / 7)
        assert (word, note) == ((None, "", "serving", "größer")[n % 4], "é" * (n % 5) + str(n))
    kinds = {"n": copying.BIGINT, "at": copying.MOMENT, "x": copying.DOUBLE}
    found = copying.read("SELECT n, at, coalesce(x, -1) FROM copied ORDER BY n", {}, kinds)
    assert found["at"].tolist() == at_us.tolist()
    assert found["x"][1] == -1.0
    with pytest.raises(ValueError, match="null or not of eight bytes"):
        copying.read("SELECT n, at, x FROM copied", {}, kinds)


INSTRUMENT = {"kind": "ppa", "factor_g_per_kwh": 11, "volume_kwh": 5, "valid_from": AT, "source": "a contract"}
VERSIONS = (
    (Tariff, {"currency": "USD", "price_per_kwh": 0.1, **NAMED}),
    (GpuRate, {"currency": "USD", "gpu_type": "A", "rate_per_gpu_hour": 2.0, **NAMED}),
    (EmbodiedFactor, {"gpu_type": "A", "gpu_kg": 300.0, "lifespan_years": 4.0, **NAMED}),
    (Pue, {"value": 1.2, **NAMED}),
    (Instrument, {**INSTRUMENT, "valid_to": AT + timedelta(days=30)}),
)


@pytest.mark.parametrize(("model", "values"), VERSIONS)
def test_version_is_entered_whole_and_never_changed(site, model, values):
    row = model(**values, **({} if model is EmbodiedFactor else {"site": site}))
    row.full_clean()
    row.save()
    row.source = "another"
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        row.save()


@pytest.mark.parametrize(("model", "values"), VERSIONS)
def test_every_field_is_named_when_all_are_missing_or_no_numbers(site, model, values):
    given = {name: "much" if isinstance(value, int | float) else value for name, value in values.items()}
    for fields in ({}, given):
        with pytest.raises(ValidationError) as error:
            model(**fields).full_clean()
        assert set(error.value.message_dict) <= {field.name for field in model._meta.fields}


def test_instrument_replaces_one_of_its_site_that_still_holds(site):
    values = {**INSTRUMENT, "valid_to": AT + timedelta(days=30)}
    first = Instrument.objects.create(site=site, **values)
    other = Instrument(site=Site.objects.exclude(pk=site.pk).first(), replaces=first, **values)
    with pytest.raises(ValidationError, match="of this site"):
        other.full_clean()
    Instrument.objects.create(site=site, replaces=first, **values)
    with pytest.raises(ValidationError, match="replaced already"):
        Instrument(site=site, replaces=first, **values).full_clean()


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"asked": {"by": ["colour"]}}, "asked", "colour"),
        ({"asked": {"period": "2026-01"}}, "asked", "leave the period out"),
        ({"asked": ["site"]}, "asked", "an object"),
        ({"recipients": ["nobody"]}, "recipients", "no mail address"),
    ],
)
def test_schedule_is_refused_by_name_when_its_report_could_not_be_made(site, values, field, words):
    with pytest.raises(ValidationError) as error:
        ReportSchedule(name="monthly", cadence="monthly", **values).full_clean()
    assert words in str(error.value.message_dict[field])
