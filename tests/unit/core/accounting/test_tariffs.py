from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.accounting.embodied import embodied_g
from core.accounting.tariffs import TariffTerms, check_zone, demand_charge, month_s, price_windows

DAY = {"from": "07:00", "to": "21:00", "price_per_kwh": 0.3, "days": ["mon", "tue", "wed", "thu", "fri"]}
NIGHT = {"from": "02:00", "to": "03:00", "price_per_kwh": 0.1}
BERLIN = TariffTerms("Europe/Berlin", "EUR", 0.2, price_windows([DAY, NIGHT]), 9.0)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("utc", "price"),
    [
        ("2026-01-14T05:59", 0.2),  # Wednesday, 06:59 in Berlin
        ("2026-01-14T06:00", 0.3),
        ("2026-07-15T05:00", 0.3),  # 07:00 in summer
        ("2026-07-15T19:00", 0.2),  # 21:00: the window is over
        ("2026-01-17T10:00", 0.2),  # Saturday
    ],
)
def test_price_follows_the_local_clock_when_windows_hold(utc: str, price: float) -> None:
    assert BERLIN.price_at(at(utc)) == price


def test_hour_is_charged_twice_when_clocks_go_back_and_never_when_they_go_forth() -> None:
    def hours(day: str) -> int:
        start = at(day)
        return sum(BERLIN.price_at(start + 300 * n) == 0.1 for n in range(-24, 288)) // 12

    assert (hours("2026-10-25T00:00"), hours("2026-03-29T00:00"), hours("2026-05-01T00:00")) == (2, 0, 1)


def test_month_is_an_hour_short_or_long_when_clocks_change_in_it() -> None:
    lengths = [month_s("Europe/Berlin", date(2026, month, 1)) for month in (1, 3, 10, 12)]
    assert [(end - start) / 3_600 for start, end in lengths] == [744, 743, 745, 744]
    assert month_s("Europe/Berlin", date(2026, 1, 1))[0] == at("2025-12-31T23:00")


@given(
    st.datetimes(datetime(2025, 1, 1), datetime(2027, 12, 31)),
    st.sampled_from(["Europe/Berlin", "UTC", "Asia/Kolkata"]),
)
def test_price_is_one_within_five_minutes_when_windows_lie_on_them(moment: datetime, zone: str) -> None:
    terms = TariffTerms(zone, "EUR", 0.2, BERLIN.windows)
    start_s = moment.replace(tzinfo=UTC).timestamp() // 300 * 300
    assert len({terms.price_at(start_s + second) for second in (0.0, 1.0, 150.0, 299.999)}) == 1


def test_months_follow_each_other_without_gaps_when_a_year_passes() -> None:
    borders = [month_s("America/New_York", date(2026, month, 1)) for month in range(1, 13)]
    assert all(a[1] == b[0] for a, b in pairwise(borders))
    assert borders[-1][1] - borders[0][0] == timedelta(days=365).total_seconds()


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        ("07:00", "a list of objects"),
        ([7], r"windows\[0\]: an object"),
        ([{**DAY, "until": "9"}], r"windows\[0\]\.until: no such field"),
        ([{**DAY, "from": "7"}], r"windows\[0\]\.from: a local time"),
        ([{**DAY, "to": "24:30"}], r"windows\[0\]\.to: a local time"),
        ([{**DAY, "to": "07:03"}], "whole 5 minutes"),
        ([{**DAY, "from": "22:00", "to": "06:00"}], "over midnight is two"),
        ([DAY, {**DAY, "price_per_kwh": "0.3"}], r"windows\[1\]\.price_per_kwh: a number"),
        ([{**DAY, "price_per_kwh": float("nan")}], "price_per_kwh: a number"),
        ([{**DAY, "days": ["monday"]}], "days: a list of mon"),
        ([{**DAY, "months": [13]}], "months: a list of numbers"),
    ],
)
def test_window_is_refused_by_name_when_it_makes_no_sense(windows: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        price_windows(windows)


def test_zone_is_refused_when_nobody_knows_it() -> None:
    check_zone("Europe/Berlin")
    with pytest.raises(ValueError, match="IANA name"):
        check_zone("Berlin")


def test_demand_is_charged_by_the_kilowatt_when_there_was_a_peak() -> None:
    assert demand_charge(BERLIN, 250_000.0) == 9.0 * 250.0


def test_embodied_carbon_is_the_reserved_share_of_a_life_when_used() -> None:
    """SCI 1.1: half of two GPUs of 1,000 kg for a year of four."""
    assert embodied_g(1_000.0, 31_557_600.0, 4.0, reserved=1.0, of=2.0) == pytest.approx(125_000.0)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"total_kg": -1.0}, "total_kg"),
        ({"lifespan_years": 0.0}, "lifespan_years"),
        ({"reserved": 2.0}, "cannot be reserved"),
    ],
)
def test_embodied_carbon_is_refused_by_name_when_it_makes_no_sense(values: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        embodied_g(**{"total_kg": 1.0, "reserved_s": 1.0, "lifespan_years": 1.0, **values})
