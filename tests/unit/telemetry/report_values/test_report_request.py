"""What may be asked of a report, and how wrong fields are named."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from telemetry.report_values.errors import BadReport
from telemetry.report_values.period import last_period, parse_period
from telemetry.report_values.report_request import ReportRequest, read

ZONES = {"ashburn": "America/New_York", "berlin": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("text", "zone", "start", "end", "words"),
    [
        ("2026-10", "UTC", "2026-10-01T00:00", "2026-11-01T00:00", "October 2026"),
        ("2026-12", "UTC", "2026-12-01T00:00", "2027-01-01T00:00", "December 2026"),
        ("2026-W01", "UTC", "2025-12-29T00:00", "2026-01-05T00:00", "week 1 of 2026"),
        ("2026-10-05", "UTC", "2026-10-05T00:00", "2026-10-06T00:00", "5 October 2026"),
        ("2026-10-05/2026-10-08", "UTC", "2026-10-05T00:00", "2026-10-08T00:00", "5 October 2026 to 7 October 2026"),
        ("2026-10", "Europe/Berlin", "2026-09-30T22:00", "2026-10-31T23:00", "October 2026"),  # clocks go back
        ("2026-03-29", "Europe/Berlin", "2026-03-28T23:00", "2026-03-29T22:00", "29 March 2026"),  # 23 hours
    ],
)
def test_period_is_local_midnights_when_it_is_read(text, zone, start, end, words):
    period = parse_period(text, zone)
    assert f"{period.start:%Y-%m-%dT%H:%M}" == start
    assert f"{period.end:%Y-%m-%dT%H:%M}" == end
    assert period.words == words


def test_days_have_23_and_25_hours_when_clocks_change():
    hours = {
        date: (end_s - start_s) / 3_600 for date, start_s, end_s in parse_period("2026-10", "Europe/Berlin").days()
    }
    assert len(hours) == 31
    assert hours["2026-10-25"] == 25
    assert sum(hours.values()) == 31 * 24 + 1


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({}, "period", "missing"),
        ({"period": 5}, "period", "missing"),
        ({"period": "October"}, "period", "not understood"),
        ({"period": "2026-13"}, "period", "calendar"),
        ({"period": "2026-W60"}, "period", "calendar"),
        ({"period": "2026-10-05/2026-10-05"}, "period", "empty"),
        ({"period": "2026-10-05/2026-10-01"}, "period", "empty"),
        ({"period": "2020-01-01/2026-10-01"}, "period", "400 days"),
        ({"period": "2026-10", "zone": "Mars/Olympus"}, "zone", "Europe/Berlin"),
        ({"period": "2026-10", "zone": "../etc"}, "zone", "no time zone"),
        ({"period": "2026-10", "zone": "site"}, "zone", "name that site"),
        ({"period": "2026-10", "zone": 7}, "zone", "text"),
        ({"period": "2026-10", "focus_version": "1.1"}, "focus_version", "choose from 1.0, 1.2, 1.4"),
        ({"period": "2026-10", "focus_version": 1.2}, "focus_version", "choose from 1.0, 1.2, 1.4"),
        ({"period": "2026-10", "by": "colour"}, "by", "choose from site, tenant"),
        ({"period": "2026-10", "by": [1]}, "by", "list of"),
        ({"period": "2026-10", "formats": "docx"}, "formats", "focus-csv"),
        ({"period": "2026-10", "formats": []}, "formats", "at least one"),
        ({"period": "2026-10", "sites": "atlantis"}, "sites", "ashburn, berlin"),
        ({"period": "2026-10", "baseline": "maybe"}, "baseline", "true or false"),
        ({"period": "2026-10", "basis": "fair"}, "basis", "usage, allocation, marginal, none"),
        ({"period": "2026-10", "basis": "none", "formats": "invoices"}, "basis", "invoices needs a bill"),
        ({"period": "2026-10", "currency": "USD"}, "currency", "no field"),
    ],
)
def test_field_is_named_with_the_remedy_when_it_is_wrong(given, field, words):
    with pytest.raises(BadReport) as error:
        read(given, ZONES)
    assert error.value.field == field
    assert words in error.value.message


def test_lists_are_in_one_order_when_they_are_asked_for_in_another():
    request = read({"period": " 2026-10 ", "by": "model,site,site", "formats": ["pdf", "csv"]}, ZONES)
    assert (request.period, request.by, request.formats) == ("2026-10", ("site", "model"), ("csv", "pdf"))
    assert ReportRequest.from_json(request.as_json()) == request


def test_zone_is_the_sites_when_one_site_is_named():
    assert read({"period": "2026-10", "zone": "site", "sites": ["berlin"]}, ZONES).zone == "Europe/Berlin"


@pytest.mark.parametrize(
    ("cadence", "now", "period"),
    [
        ("monthly", "2026-11-01T00:30", "2026-10"),
        ("monthly", "2026-10-31T23:30", "2026-10"),  # it is November in Berlin
        ("weekly", "2026-10-05T08:00", "2026-W40"),
        ("weekly", "2026-01-04T12:00", "2025-W52"),
    ],
)
def test_last_period_is_over_when_it_is_named(cadence, now, period):
    at = datetime.fromisoformat(now).replace(tzinfo=UTC)
    found = last_period(cadence, "Europe/Berlin", at)
    assert found == period
    assert parse_period(found, "Europe/Berlin").end <= at


def test_version_of_focus_is_kept_but_for_the_first_whose_reports_stay_as_they_were():
    asked = read({"period": "2026-10", "focus_version": "1.0"}, ZONES)
    assert asked.as_json()["focus_version"] == "1.0"
    assert ReportRequest.from_json(asked.as_json()) == asked
    newest = read({"period": "2026-10"}, ZONES)
    assert newest.focus_version == "1.4"
    assert "focus_version" not in newest.as_json()  # so what was asked before has the same signature and revisions
    assert ReportRequest.from_json(newest.as_json()) == newest
