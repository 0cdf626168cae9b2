"""What every carbon provider does alike, from recorded answers: order, signals, actuals and forecasts kept apart."""

from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from django.conf import settings
from django.utils.module_loading import import_string

from core.ports import PermanentError
from telemetry.providers.provider_http import Bounds, Outside, Pace
from telemetry.providers.secrets import VARIABLES, Secret
from tests.fakes.web import Answer, Clock, serving
from tests.unit.telemetry.providers import test_adapters as texts
from tests.unit.telemetry.providers import test_entsoe as xml


@dataclass(frozen=True)
class Case:
    """A provider, a moment in the middle of what its recorded answers tell, and those, by what a path ends with."""

    name: str
    zone: str
    signal: str
    at: str
    answers: dict[str, str]
    config: dict[str, Any]


TWO_HOURS = texts.EM_HISTORY.replace("}]}", '},{"carbonIntensity":510,"datetime":"2024-11-30T05:00:00.000Z"}]}')
CSV = (
    "zone,start_utc,end_utc,signal,value,unit,factor,source\n"
    "Z,2026-01-01T00:00Z,2026-01-01T01:00Z,average,322,gCO2e/kWh,lifecycle,x\n"
    "Z,2026-01-01T01:00Z,2026-01-01T02:00Z,average,,gCO2e/kWh,lifecycle,x\n"
    "Z,2026-01-01T02:00Z,2026-01-01T03:00Z,average,300,gCO2e/kWh,lifecycle,x\n"
)
GB_DAY = (
    '{"data":['
    + ",".join(
        f'{{"from":"2026-01-20T{h:02}:{m:02}Z","to":"2026-01-20T{h + (m == 30):02}:{(m + 30) % 60:02}Z",'
        f'"intensity":{{"forecast":200,"actual":{"201" if h < 11 else "null"},"index":"low"}}}}'
        for h in range(8, 15)
        for m in (0, 30)
    )
    + "]}"
)
CASES = [
    Case(
        "electricity_maps",
        "US-MIDW-MISO",
        "average",
        "2024-11-30T06:30Z",
        {
            "past-range": TWO_HOURS.replace('"history"', '"data"'),
            "forecast": texts.EM_FORECAST.replace("DE", "US-MIDW-MISO"),
        },
        {"plan": "paid"},
    ),
    Case(
        "watttime",
        "CAISO_NORTH",
        "marginal",
        "2022-07-15T00:07Z",
        {"login": '{"token":"t"}', "historical": texts.WT_FORECAST, "forecast": texts.WT_FORECAST},
        {},
    ),
    Case("gb_carbon_intensity", "GB", "average", "2026-01-20T12:10Z", {"Z": GB_DAY}, {}),
    Case("pjm", "51291", "marginal", "2026-05-01T04:07Z", {"emissions": texts.PJM}, {}),
    Case("eia", "PJM", "average", "2026-05-01T04:30Z", {"data/": texts.EIA}, {}),
    Case("entsoe", xml.ZONE, "price", "2026-05-01T22:20Z", {"api": xml.PRICES}, {}),
    Case("static_csv", "Z", "average", "2026-01-01T01:10Z", {}, {"zone": "Z"}),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture
def make(case, tmp_path):
    """Makes the adapter that settings name, against a server of its recorded answers."""
    clock = Clock()
    bounds = Bounds(connect_s=10.0, read_s=20.0, total_s=30.0)
    keys = {name: Secret("hush") for name in VARIABLES}
    outside = Outside(secrets=keys, pace=Pace(clock, clock.sleep), feed_files=tmp_path, bounds=bounds, loopback=True)
    (tmp_path / "grid.csv").write_text(CSV)

    def ending(asked):
        found = [text for end, text in case.answers.items() if asked.path.endswith(end)]
        return Answer(found[0] if found else "", 200 if found else 404)

    with serving() as web:
        web.routes = type("Endings", (dict,), {"get": lambda self, key, default=None: ending})()

        def adapter(**config):
            own = {"signal": case.signal, "file": "grid.csv", "base_url": web.url, **case.config, **config}
            return import_string(settings.GREENSERVE_CARBON_PROVIDERS[case.name])(own, outside)

        yield adapter


def moment(case):
    return datetime.fromisoformat(case.at).timestamp()


def test_actuals_lie_in_order_and_in_the_window_when_asked(case, make):
    now_s = moment(case)
    points = make().actuals(case.zone, now_s - 7_200.0, now_s)
    assert points
    assert all(p.end_s > now_s - 7_200.0 and p.start_s < now_s and p.end_s > p.start_s for p in points)
    assert all(before.end_s <= after.start_s for before, after in pairwise(points))
    assert {(p.zone, p.signal, p.forecast, p.provider) for p in points} == {(case.zone, case.signal, False, case.name)}


def test_raw_value_and_unit_are_kept_when_a_value_is_converted(case, make):
    now_s = moment(case)
    for point in make().actuals(case.zone, now_s - 7_200.0, now_s):
        value = point.price_per_kwh if case.signal == "price" else point.value_g_per_kwh
        assert (value is None) == (point.raw_value is None)
        assert point.raw_unit
        assert (point.value_g_per_kwh is None) or (point.price_per_kwh is None)
        assert bool(point.currency) == (case.signal == "price")
        assert point.factor in (("",) if case.signal == "price" else ("direct", "lifecycle"))


def test_forecast_lies_ahead_and_was_issued_before_when_there_is_one(case, make):
    provider, now_s = make(), moment(case)
    points = provider.forecast(case.zone, now_s, 86_400.0)
    if provider.capabilities.horizon_s == 0.0:
        assert points == ()
    for point in points:
        assert point.forecast
        assert point.end_s > now_s
        assert (point.zone, point.signal, point.provider) == (case.zone, case.signal, case.name)


def test_capabilities_name_the_signal_when_an_adapter_is_made(case, make):
    can = make().capabilities
    assert case.signal in can.signals
    assert can.step_s > 0.0
    assert can.horizon_s >= 0.0
    assert can.lag_s >= 0.0


def test_feed_is_refused_when_the_signal_is_nonsense(case, make):
    with pytest.raises(PermanentError):
        make(signal="phase of the moon")
