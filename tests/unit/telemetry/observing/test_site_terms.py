"""PUE, carbon and prices, as options say them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.simulator.fields import ScenarioError
from telemetry.observing.site_terms import SiteTerms, site_of
from telemetry.providers.gb_carbon_intensity import GbCarbonIntensityProvider
from telemetry.providers.parsing import FeedPoints
from telemetry.providers.provider_http import Outside
from tests.fakes.observed_fleet import BEGIN_S

START = datetime.fromtimestamp(BEGIN_S, UTC)


def section(given: SiteTerms, folder: Path = Path()) -> dict[str, object]:
    return given.section(folder, BEGIN_S, BEGIN_S + 900.0, Outside())


def test_what_was_not_given_is_not_in_the_section() -> None:
    assert section(SiteTerms()) == {"pue": 1.0}
    site = site_of(section(SiteTerms(carbon="350", price_per_kwh=0.0)), START)
    assert site.intensity_g_per_kwh(0.0) == 350.0
    assert site.usd_per_kwh is not None, "a price of zero is a price"


def test_hours_of_a_file_hold_at_their_own_time(tmp_path: Path) -> None:
    hour = START.replace(minute=0, second=0)
    rows = [f"{(hour + timedelta(hours=k)).isoformat()},{value}" for k, value in enumerate((100, 200))]
    (tmp_path / "hours.csv").write_text("\n".join(["start,value", *rows]), encoding="utf-8")
    site = site_of(section(SiteTerms(carbon=str(tmp_path / "hours.csv"))), START)
    assert site.intensity_g_per_kwh(0.0) == 100.0
    assert site.intensity_g_per_kwh(3600.0) == 200.0


def test_half_hours_of_a_feed_hold_at_their_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forecast(self: object, zone: str, now_s: float, horizon_s: float) -> tuple[object, ...]:
        series = FeedPoints("gb", zone, "average", "direct", "gCO2/kWh")
        return tuple(
            series.point(now_s + 1800.0 * k, now_s + 1800.0 * (k + 1), 80.0 + k, issued_at_s=now_s, forecast=True)
            for k in range(int(horizon_s // 1800.0) + 1)
        )

    monkeypatch.setattr(GbCarbonIntensityProvider, "forecast", forecast)
    site = site_of(section(SiteTerms(carbon="GB-13"), tmp_path), START)
    assert site.intensity_g_per_kwh(0.0) == 80.0
    assert site.intensity_g_per_kwh(1800.0) == 81.0


def test_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"nowhere\.csv"):
        site_of(section(SiteTerms(carbon="nowhere.csv")), START)
