"""Each provider on recorded text: what it tells, and what it must not make of nulls, gaps, clock changes and errors.

Payloads are as their providers document them; those of GB, PJM and EIA are constructed on their fields.
"""

import json
from datetime import datetime

import pytest

from core.ports import PermanentError, RetryableError
from telemetry.providers import pjm
from telemetry.providers.eia import EiaProvider
from telemetry.providers.electricity_maps import ElectricityMapsProvider
from telemetry.providers.gb_carbon_intensity import GbCarbonIntensityProvider
from telemetry.providers.pjm import PjmProvider
from telemetry.providers.watttime import WattTimeProvider
from tests.fakes.web import Answer

EM_HISTORY = """{"zone":"US-MIDW-MISO","history":[{"zone":"US-MIDW-MISO","carbonIntensity":501,\
"datetime":"2024-11-30T06:00:00.000Z","updatedAt":"2024-12-01T05:44:10.595Z","createdAt":"2024-11-28T06:43:54.038Z",\
"emissionFactorType":"lifecycle","isEstimated":true,"estimationMethod":"TIME_SLICER_AVERAGE"}]}"""
EM_FORECAST = """{"zone":"DE","updatedAt":"2026-05-01T10:05:00.000Z","forecast":[{"carbonIntensity":322,\
"datetime":"2026-05-01T11:00:00.000Z"}]}"""
EM_PRICE = (
    """{"zone":"DE","data":[{"datetime":"2026-05-01T11:00:00.000Z","value":-3.2,"unit":"EUR/MWh","source":"x"}]}"""
)
WT_FORECAST = """{"data":[{"point_time":"2022-07-15T00:00:00+00:00","value":1048.4131919701972},\
{"point_time":"2022-07-15T00:05:00+00:00","value":1051.0880801214637}],"meta":{"data_point_period_seconds":300,\
"region":"CAISO_NORTH","signal_type":"co2_moer","model":{"date":"2023-03-01"},"units":"lbs_co2_per_mwh",\
"generated_at_period_seconds":300,"generated_at":"2022-07-15T00:00:00+00:00"}}"""
GB = """{"data":[{"from":"2026-01-20T12:00Z","to":"2026-01-20T12:30Z","intensity":{"forecast":266,"actual":null,\
"index":"moderate"}}]}"""
GB_REGION = """{"data":{"regionid":3,"data":[{"from":"2026-01-20T12:00Z","to":"2026-01-20T12:30Z",\
"intensity":{"forecast":12,"index":"very low"},"generationmix":[]}]}}"""
PJM = """{"totalRows":1,"items":[{"datetime_beginning_utc":"2026-05-01T04:00:00",\
"datetime_beginning_ept":"2026-05-01T00:00:00","pnode_id":51291,"pnode_name":"EXAMPLE","marginal_co2_rate":-614.473355,\
"marginal_so2_rate":0.1,"marginal_nox_rate":0.2}]}"""
EIA = """{"response":{"total":"1","data":[{"period":"2026-05-01T04","respondent":"PJM","fueltype":"NG","value":"41234",\
"value-units":"megawatthours"}]}}"""


def at(text):
    return datetime.fromisoformat(text).timestamp()


def test_estimate_is_marked_when_electricity_maps_estimates(make, web):
    web.routes["/v3/carbon-intensity/history"] = Answer(EM_HISTORY)
    provider = make(ElectricityMapsProvider)
    (point,) = provider.actuals("US-MIDW-MISO", at("2024-11-30T00:00Z"), at("2024-12-01T00:00Z"))
    assert (point.value_g_per_kwh, point.raw_value, point.raw_unit) == (501.0, 501.0, "gCO2eq/kWh")
    assert (point.signal, point.factor, point.estimated, point.forecast) == ("average", "lifecycle", True, False)
    assert point.updated_at_s == point.issued_at_s == at("2024-12-01T05:44:10.595Z")
    assert point.end_s - point.start_s == 3_600.0
    assert web.asked[0].query["emissionFactorType"] == ["lifecycle"]
    assert web.asked[0].headers["auth-token"] == "sEcReT-0-of-nobody"


def test_forecast_is_not_asked_for_when_the_plan_is_free(make, web):
    provider = make(ElectricityMapsProvider)
    assert provider.forecast("DE", 0.0, 3_600.0) == ()
    assert provider.capabilities.horizon_s == 0.0
    assert not web.asked


def test_forecast_has_its_time_of_issue_when_electricity_maps_forecasts(make, web):
    web.routes["/v3/carbon-intensity/forecast"] = Answer(EM_FORECAST)
    provider = make(ElectricityMapsProvider, plan="paid")
    (point,) = provider.forecast("DE", at("2026-05-01T10:10Z"), 30 * 3_600.0)
    assert (point.value_g_per_kwh, point.forecast) == (322.0, True)
    assert point.issued_at_s == at("2026-05-01T10:05Z")
    assert web.asked[0].query["horizonHours"] == ["48"]


def test_history_comes_in_pieces_of_ten_days_when_the_plan_is_paid(make, web):
    web.routes["/v3/carbon-intensity/past-range"] = Answer('{"zone":"DE","data":[]}')
    make(ElectricityMapsProvider, plan="paid").actuals("DE", at("2026-05-01T00:00Z"), at("2026-05-26T00:00Z"))
    assert [(asked.query["start"], asked.query["end"]) for asked in web.asked] == [
        (["2026-05-01T00:00:00Z"], ["2026-05-11T00:00:00Z"]),
        (["2026-05-11T00:00:00Z"], ["2026-05-21T00:00:00Z"]),
        (["2026-05-21T00:00:00Z"], ["2026-05-26T00:00:00Z"]),
    ]


def test_price_is_negative_and_no_carbon_when_the_market_says_so(make, web):
    web.routes["/v3/price-day-ahead/past-range"] = Answer(EM_PRICE)
    provider = make(ElectricityMapsProvider, plan="paid", signal="price")
    (point,) = provider.actuals("DE", at("2026-05-01T11:00Z"), at("2026-05-01T12:00Z"))
    assert (point.price_per_kwh, point.currency, point.value_g_per_kwh) == (pytest.approx(-0.0032), "EUR", None)
    assert (point.signal, point.factor, point.raw_unit) == ("price", "", "EUR/MWh")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"zone":"US-MIDW-MISO","history"', '"zone":"US","history"', "zone is not 'US-MIDW-MISO'"),
        ('"lifecycle"', '"direct"', "emissionFactorType is not 'lifecycle'"),
        ('"carbonIntensity":501', '"carbonIntensity":"501"', "carbonIntensity is no number"),
        ('"carbonIntensity":501', '"carbonIntensity":-1', "an average intensity of -1"),
        ('"carbonIntensity":501,', "", "carbonIntensity is missing"),
        ("06:00:00.000Z", "06:00:00.000", "datetime is a time without a zone"),
        ('"history":[', '"past":[', "history is missing"),
        (EM_HISTORY, '{"zone":"US-MIDW-MISO","history":{}}', "history is no list"),
        (EM_HISTORY, '{"zone":"US-MIDW-MISO","history":[7]}', "datetime is missing"),
    ],
)
def test_answer_is_refused_when_it_is_not_as_documented(make, web, old, new, words):
    assert old in EM_HISTORY
    web.routes["/v3/carbon-intensity/history"] = Answer(EM_HISTORY.replace(old, new, 1))
    with pytest.raises(PermanentError, match="electricity_maps: ") as caught:
        make(ElectricityMapsProvider).actuals("US-MIDW-MISO", 0.0, 4e9)
    assert words in str(caught.value)


@pytest.mark.parametrize("body", [EM_HISTORY[:-9], "", "<html>", EM_HISTORY.replace("501", "NaN"), "[" * 100_000])
def test_another_try_may_help_when_the_answer_is_no_json(make, web, body):
    web.routes["/v3/carbon-intensity/history"] = Answer(body)
    with pytest.raises(RetryableError, match="no JSON"):
        make(ElectricityMapsProvider).actuals("US-MIDW-MISO", 0.0, 4e9)


@pytest.mark.parametrize(
    ("kind", "path", "body", "zone"),
    [
        (
            ElectricityMapsProvider,
            "/v3/carbon-intensity/history",
            EM_HISTORY.replace("501", "null"),
            "US-MIDW-MISO",
        ),
        (GbCarbonIntensityProvider, None, GB, "GB"),
        (PjmProvider, pjm.PATH, PJM.replace("-614.473355", "null"), "51291"),
        (WattTimeProvider, "/v3/historical", WT_FORECAST.replace("1048.4131919701972", "null"), "CAISO_NORTH"),
        (EiaProvider, "/v2/electricity/rto/fuel-type-data/data/", EIA.replace('"41234"', "null"), "PJM"),
    ],
)
def test_null_stays_null_when_a_provider_has_no_value(make, web, kind, path, body, zone):
    start_s, end_s = at("2022-07-15T00:00Z"), at("2022-07-15T00:05Z")
    if kind is not WattTimeProvider:
        start_s, end_s = at("2024-11-01T00:00Z"), at("2024-12-01T00:00Z")
    if kind in (PjmProvider, EiaProvider):
        start_s, end_s = at("2026-05-01T03:00Z"), at("2026-05-01T05:00Z")
    if kind is GbCarbonIntensityProvider:
        start_s, end_s = at("2026-01-20T12:00Z"), at("2026-01-20T14:00Z")
        path = "/intensity/2026-01-20T12:00Z/2026-01-20T14:00Z"
    web.routes |= {path: Answer(body), "/login": Answer('{"token":"abc"}')}
    (point,) = make(kind).actuals(zone, start_s, end_s)
    assert (point.value_g_per_kwh, point.raw_value) == (None, None)


def test_signs_in_once_when_watttime_is_asked_twice(make, web):
    web.routes |= {
        "/login": Answer('{"token":"abc"}'),
        "/v3/historical": Answer(WT_FORECAST),
        "/v3/forecast": Answer(WT_FORECAST),
    }
    provider = make(WattTimeProvider)
    actuals = provider.actuals("CAISO_NORTH", at("2022-07-15T00:00Z"), at("2022-07-15T00:10Z"))
    (ahead,) = provider.forecast("CAISO_NORTH", at("2022-07-15T00:01Z"), 86_400.0)
    assert [asked.path for asked in web.asked] == ["/login", "/v3/historical", "/v3/forecast"]
    assert web.asked[0].headers["Authorization"].startswith("Basic ")
    assert web.asked[1].headers["Authorization"] == "Bearer abc"
    assert [point.value_g_per_kwh for point in actuals] == pytest.approx([475.5522, 476.7655], abs=1e-3)
    assert (ahead.signal, ahead.factor, ahead.raw_unit) == ("marginal", "direct", "lbs_co2_per_mwh")
    assert (ahead.forecast, ahead.issued_at_s) == (True, at("2022-07-15T00:00Z"))
    assert web.asked[2].query == {"region": ["CAISO_NORTH"], "signal_type": ["co2_moer"], "horizon_hours": ["24"]}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("lbs_co2_per_mwh", "percent", "meta.units is 'percent'"),
        ("co2_moer", "co2_aoer", "meta.signal_type is 'co2_aoer'"),
        ("CAISO_NORTH", "PJM_DC", "meta.region is 'PJM_DC'"),
        ('"data_point_period_seconds":300', '"data_point_period_seconds":0', "is no length of time"),
    ],
)
def test_series_are_not_mixed_when_watttime_tells_another(make, web, old, new, words):
    web.routes |= {"/login": Answer('{"token":"abc"}'), "/v3/historical": Answer(WT_FORECAST.replace(old, new, 1))}
    with pytest.raises(PermanentError) as caught:
        make(WattTimeProvider).actuals("CAISO_NORTH", 0.0, 1.0)
    assert words in str(caught.value)


def test_actual_is_not_missing_when_it_is_only_late(make, web):
    web.routes["/intensity/2026-01-20T11:10Z/2026-01-20T12:10Z"] = Answer(GB)
    assert make(GbCarbonIntensityProvider).actuals("GB", at("2026-01-20T11:10Z"), at("2026-01-20T12:10Z")) == ()


def test_forecast_covers_the_half_hour_under_way_when_britain_is_asked(make, web):
    web.routes["/intensity/2026-01-20T12:10Z/2026-01-21T12:10Z"] = Answer(GB)
    (point,) = make(GbCarbonIntensityProvider).forecast("GB", at("2026-01-20T12:10Z"), 86_400.0)
    assert (point.value_g_per_kwh, point.factor, point.issued_at_s) == (266.0, "direct", at("2026-01-20T12:10Z"))


def test_region_has_a_forecast_only_when_britain_is_asked_for_one(make, web):
    web.routes["/regional/intensity/2026-01-20T12:10Z/fw48h/regionid/3"] = Answer(GB_REGION)
    provider = make(GbCarbonIntensityProvider, zone="GB-3")
    assert provider.actuals("GB-3", 0.0, 3_600.0) == ()
    assert not provider.capabilities.actuals
    (point,) = provider.forecast("GB-3", at("2026-01-20T12:10Z"), 86_400.0)
    assert (point.value_g_per_kwh, point.zone) == (12.0, "GB-3")
    with pytest.raises(PermanentError, match="GB-1 to GB-17"):
        provider.actuals("GB-99", 0.0, 1.0)


def test_negative_rate_stays_when_pjm_tells_one(make, web):
    web.routes[pjm.PATH] = Answer(PJM)
    (point,) = make(PjmProvider).actuals("51291", at("2026-05-01T04:00Z"), at("2026-05-01T05:00Z"))
    assert point.value_g_per_kwh == pytest.approx(-278.7204, abs=1e-3)
    assert (point.signal, point.factor, point.start_s) == ("marginal", "direct", at("2026-05-01T04:00Z"))
    assert web.asked[0].query["datetime_beginning_ept"] == ["2026-04-30 23:00 to 2026-05-01 02:00"]
    assert make(PjmProvider).capabilities.horizon_s == 0.0
    assert make(PjmProvider).forecast("51291", 0.0, 1e5) == ()


def pjm_rows(starts):
    return [{"datetime_beginning_utc": s, "pnode_id": 1, "marginal_co2_rate": float(i)} for i, s in enumerate(starts)]


def test_both_hours_come_when_the_clock_is_set_back(make, web):
    """On 2026-11-01 01:00-02:00 Eastern comes twice: 05:00Z and 06:00Z."""
    starts = [f"2026-11-01T{hour:02}:{minute:02}:00" for hour in range(3, 9) for minute in range(0, 60, 5)]
    web.routes[pjm.PATH] = Answer(json.dumps({"totalRows": len(starts), "items": pjm_rows(starts)}))
    points = make(PjmProvider).actuals("1", at("2026-11-01T05:00Z"), at("2026-11-01T07:00Z"))
    assert [point.start_s for point in points] == [at("2026-11-01T05:00Z") + i * 300.0 for i in range(24)]
    assert web.asked[0].query["datetime_beginning_ept"] == ["2026-11-01 00:00 to 2026-11-01 03:00"]


def test_window_holds_when_the_clock_is_set_forward(make, web):
    """On 2026-03-08 02:00 Eastern does not exist; 06:30Z is 01:30, 07:30Z is 03:30."""
    web.routes[pjm.PATH] = Answer('{"totalRows":0,"items":[]}')
    assert make(PjmProvider).actuals("1", at("2026-03-08T06:30Z"), at("2026-03-08T07:30Z")) == ()
    assert web.asked[0].query["datetime_beginning_ept"] == ["2026-03-08 00:30 to 2026-03-08 04:30"]


def test_pages_are_put_together_when_pjm_has_several(make, web, clock):
    starts = [f"2026-05-01T{hour:02}:00:00" for hour in range(5)]
    rows = pjm_rows(starts)

    def page(asked):
        first = int(asked.query["startRow"][0]) - 1
        return Answer(json.dumps({"totalRows": 5, "items": rows[first : first + 2]}))

    web.routes[pjm.PATH] = page
    provider = make(PjmProvider)
    provider._rows = 2
    assert len(provider.actuals("1", at("2026-05-01T00:00Z"), at("2026-05-01T05:00Z"))) == 5
    assert clock.slept == [10.0, 10.0]  # 6 calls a minute


def eia_rows(*rows):
    return [
        {"period": p, "respondent": "PJM", "fueltype": f, "value": v, "value-units": "megawatthours"}
        for p, f, v in rows
    ]


def test_intensity_is_derived_when_eia_tells_the_mix(make, web):
    rows = eia_rows(
        ("2026-05-01T04", "NG", "600"), ("2026-05-01T04", "NUC", "400"), ("2026-05-01T04", "SUN", "-3"),
        ("2026-05-01T05", "NG", "600"), ("2026-05-01T05", "SUN", "0"),
    )  # fmt: skip

    def page(asked):
        first = int(asked.query["offset"][0])
        return Answer(json.dumps({"response": {"total": "5", "data": rows[first : first + 2]}}))

    web.routes["/v2/electricity/rto/fuel-type-data/data/"] = page
    provider = make(EiaProvider)
    provider._rows = 2
    whole, partial = provider.actuals("PJM", at("2026-05-01T03:00Z"), at("2026-05-01T05:00Z"))
    assert whole.value_g_per_kwh == pytest.approx((600 * 490 + 400 * 12) / 1000)
    assert (whole.start_s, whole.end_s) == (at("2026-05-01T03:00Z"), at("2026-05-01T04:00Z"))  # a period names its end
    assert (whole.estimated, whole.factor, whole.signal) == (True, "lifecycle", "average")
    assert partial.value_g_per_kwh is None  # nuclear has not reported yet: the mix is not whole
    assert len(web.asked) == 3
    assert web.asked[0].query["sort[0][column]"] == ["period"]


def test_factors_are_direct_when_the_feed_says_so(make, web):
    rows = eia_rows(("2026-05-01T04", "COL", "100"), ("2026-05-01T04", "NUC", "100"))
    web.routes["/v2/electricity/rto/fuel-type-data/data/"] = Answer(
        json.dumps({"response": {"total": 2, "data": rows}})
    )
    (point,) = make(EiaProvider, factor="direct").actuals("PJM", at("2026-05-01T03:00Z"), at("2026-05-01T04:00Z"))
    assert point.value_g_per_kwh == pytest.approx(2.30 * 453.59237 / 2)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (EIA.replace("megawatthours", "btu"), "value-units is 'btu'"),
        (EIA.replace('"PJM"', '"CISO"'), "respondent is not 'PJM'"),
        (EIA.replace('"41234"', '"a lot"'), "value is no number"),
        ('{"error":"API_KEY_INVALID"}', "response.total is missing"),
    ],
)
def test_mix_is_refused_when_eia_tells_something_else(make, web, body, words):
    web.routes["/v2/electricity/rto/fuel-type-data/data/"] = Answer(body)
    with pytest.raises(PermanentError) as caught:
        make(EiaProvider).actuals("PJM", 0.0, 1.0)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        (PjmProvider, {"signal": "average"}, "signal 'average' is not to be had; it tells marginal"),
        (GbCarbonIntensityProvider, {"signal": "marginal"}, "it tells average"),
        (GbCarbonIntensityProvider, {"factor": "lifecycle"}, "it tells direct"),
        (WattTimeProvider, {"signal": "price"}, "it tells marginal, average"),
        (EiaProvider, {"factor": "both"}, "it tells direct, lifecycle"),
        (ElectricityMapsProvider, {"signal": "marginal"}, "it tells average, price"),
    ],
)
def test_feed_is_refused_when_the_provider_has_no_such_signal(make, kind, config, words):
    with pytest.raises(PermanentError, match=words):
        make(kind, **config)
