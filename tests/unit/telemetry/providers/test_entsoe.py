"""ENTSO-E's XML: repeated and missing positions, clock changes, finer curves, no data, and what is refused."""

from datetime import datetime
from itertools import pairwise

import pytest

from core.ports import PermanentError, RetryableError
from telemetry.providers.entsoe import EntsoeProvider
from tests.fakes.web import Answer

ZONE = "10Y1001A1001A82H"
PRICES = (
    "<Publication_MarketDocument><TimeSeries><currency_Unit.name>EUR</currency_Unit.name><price_Measure_Unit.name>MWH"
    "</price_Measure_Unit.name><curveType>A03</curveType><Period><timeInterval><start>2026-05-01T22:00Z</start><end>"
    "2026-05-01T23:00Z</end></timeInterval><resolution>PT15M</resolution><Point><position>1</position><price.amount>84.10"
    "</price.amount></Point><Point><position>4</position><price.amount>-2.00</price.amount></Point></Period></TimeSeries>"
    "</Publication_MarketDocument>"
)
NO_DATA = (
    '<?xml version="1.0" encoding="UTF-8"?><Acknowledgement_MarketDocument xmlns="urn:iec62325.351:tc57wg16:451-1:'
    'acknowledgementdocument:7:0"><Reason><code>999</code><text>No matching data found</text></Reason>'
    "</Acknowledgement_MarketDocument>"
)


def at(text):
    return datetime.fromisoformat(text).timestamp()


def mix(fuel, values, resolution="PT60M", start="2026-05-01T22:00Z", end="2026-05-02T00:00Z", extra="", curve="A01"):
    points = "".join(
        f"<Point><position>{i}</position><quantity>{v}</quantity></Point>"
        for i, v in enumerate(values, 1)
        if v is not None
    )
    return (
        f"<TimeSeries>{extra}<quantity_Measure_Unit.name>MAW</quantity_Measure_Unit.name><curveType>{curve}</curveType>"
        f"<MktPSRType><psrType>{fuel}</psrType></MktPSRType><Period><timeInterval><start>{start}</start><end>{end}</end>"
        f"</timeInterval><resolution>{resolution}</resolution>{points}</Period></TimeSeries>"
    )


def document(*series):
    return f'<GL_MarketDocument xmlns="urn:x:y:0">{"".join(series)}</GL_MarketDocument>'


def asked(make, web, body, start="2026-05-01T22:00Z", end="2026-05-02T00:00Z", status=200, **config):
    web.routes["/api"] = Answer(body, status)
    return make(EntsoeProvider, **config).actuals(ZONE, at(start), at(end))


def test_missing_position_repeats_the_last_when_the_curve_is_a03(make, web):
    points = asked(make, web, PRICES, signal="price")
    assert [point.price_per_kwh for point in points] == pytest.approx([0.0841, 0.0841, 0.0841, -0.002])
    assert {(p.currency, p.raw_unit, p.end_s - p.start_s) for p in points} == {("EUR", "EUR/MWh", 900.0)}
    query = web.asked[0].query
    assert (query["documentType"], query["periodStart"], query["periodEnd"]) == (
        ["A44"],
        ["202605012200"],
        ["202605020000"],
    )


def test_missing_position_is_a_gap_when_the_curve_is_a01(make, web):
    points = asked(make, web, PRICES.replace("A03", "A01"), signal="price")
    assert [point.start_s for point in points] == [at("2026-05-01T22:00Z"), at("2026-05-01T22:45Z")]


def test_first_position_is_a_gap_when_there_is_none_to_repeat(make, web):
    points = asked(make, web, PRICES.replace("<position>1<", "<position>3<"), signal="price")
    assert [point.start_s for point in points] == [at("2026-05-01T22:30Z"), at("2026-05-01T22:45Z")]


@pytest.mark.parametrize(("start", "hours"), [("2026-03-28T23:00Z", 23), ("2026-10-24T22:00Z", 25)])
def test_day_has_its_true_hours_when_the_clock_changes(make, web, start, hours):
    end = datetime.fromtimestamp(at(start) + hours * 3_600, tz=datetime.fromisoformat(start).tzinfo)
    body = PRICES.replace("2026-05-01T22:00Z", start).replace("2026-05-01T23:00Z", f"{end:%Y-%m-%dT%H:%MZ}")
    points = asked(make, web, body, start, f"{end:%Y-%m-%dT%H:%MZ}", signal="price")
    assert len(points) == hours * 4
    assert {b.start_s - a.start_s for a, b in pairwise(points)} == {900.0}


def test_settled_prices_are_a_forecast_when_they_lie_ahead(make, web):
    web.routes["/api"] = Answer(PRICES)
    points = make(EntsoeProvider, signal="price").forecast(ZONE, at("2026-05-01T22:20Z"), 86_400.0)
    assert [(p.start_s, p.forecast, p.issued_at_s) for p in points] == [
        (at(f"2026-05-01T22:{minute}Z"), True, at("2026-05-01T22:20Z")) for minute in (30, 45)
    ]
    assert make(EntsoeProvider).forecast(ZONE, 0.0, 1.0) == ()


def test_finest_curve_counts_when_curves_overlap(make, web):
    hourly = PRICES.replace("PT15M", "PT60M").replace("<position>4<", "<position>1<")
    hourly = hourly.partition("<TimeSeries>")[2].partition("</TimeSeries>")[0]
    sequence = "classificationSequence_AttributeInstanceComponent.position"
    other = f"<{sequence}>2</{sequence}>"
    body = PRICES.replace(
        "<Publication_MarketDocument>",
        f"<Publication_MarketDocument><TimeSeries>{hourly}</TimeSeries><TimeSeries>{other}{hourly}</TimeSeries>",
    )
    assert [p.end_s - p.start_s for p in asked(make, web, body, signal="price")] == [900.0] * 4


@pytest.mark.parametrize("status", [200, 400])
def test_nothing_is_returned_when_there_is_no_data(make, web, status):
    assert asked(make, web, NO_DATA, status=status) == ()


def test_intensity_is_derived_from_all_fuels_when_they_come_on_two_grids(make, web):
    pumps = mix("B10", [500, 500], extra="<outBiddingZone_Domain.mRID>x</outBiddingZone_Domain.mRID>")
    body = document(mix("B04", [100, 100]), mix("B14", [300, 300, 300, 300, 100, 100, 100, 100], "PT15M"), pumps)
    points = asked(make, web, body)
    assert len(points) == 8
    assert points[0].value_g_per_kwh == pytest.approx((100 * 490 + 300 * 12) / 400)
    assert points[7].value_g_per_kwh == pytest.approx((100 * 490 + 100 * 12) / 200)
    assert {(p.estimated, p.signal, p.factor) for p in points} == {(True, "average", "lifecycle")}


def test_intensity_is_unknown_when_a_large_fuel_has_not_reported(make, web):
    first, second = asked(make, web, document(mix("B04", [100, 100]), mix("B14", [300, None])))
    assert first.value_g_per_kwh is not None
    assert second.value_g_per_kwh is None


def test_intensity_is_unknown_when_much_of_the_mix_has_no_factor(make, web):
    first, second = asked(make, web, document(mix("B07", [50, 5]), mix("B16", [100, 100])))
    assert first.value_g_per_kwh is None
    assert second.value_g_per_kwh == pytest.approx(48.0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (NO_DATA.replace("999", "401").replace("No matching data found", "Too much"), "Too much"),
        (PRICES.replace("MWH", "KWH"), "is 'KWH' rather than 'MWH'"),
        (PRICES.replace("PT15M", "P1Y"), "resolution 'P1Y' is unknown"),
        (PRICES.replace("PT15M", "PT0M"), "resolution 'PT0M' is unknown"),
        (PRICES.replace("<position>4", "<position>5"), "position lies outside its period"),
        (PRICES.replace("<position>4", "<position>x"), "position is no number"),
        (PRICES.replace("-2.00", ""), "price.amount is no number"),
        (PRICES.replace("22:00Z", "22:00"), "timeInterval is a time without a zone"),
        ('<!DOCTYPE x [<!ENTITY a "aaaa">]><x>&a;</x>', "declares entities"),
    ],
)
def test_document_is_refused_when_it_is_not_as_documented(make, web, body, words):
    with pytest.raises(PermanentError, match="entsoe: ") as caught:
        asked(make, web, body, signal="price")
    assert words in str(caught.value)


def test_another_try_may_help_when_the_document_is_cut_short(make, web):
    with pytest.raises(RetryableError, match="no XML"):
        asked(make, web, PRICES[:-40], signal="price")
