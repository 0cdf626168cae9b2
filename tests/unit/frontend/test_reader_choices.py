from __future__ import annotations

import pytest
from django.http import QueryDict

from frontend import reader_choices


@pytest.mark.parametrize(("query", "key"), [("", "15m"), ("range=6h", "6h"), ("range=1y", "15m"), ("range=%00", "15m")])
def test_range_falls_back_to_the_default_when_it_is_not_one(query, key):
    assert reader_choices.chosen(QueryDict(query), 5_000.0).key == key


def test_refresh_is_slower_when_buckets_are_longer():
    refresh = [
        reader_choices.refresh_s(reader_choices.chosen(QueryDict(f"range={key}"), 1e6).window)
        for key in reader_choices.RANGES
    ]
    assert refresh == sorted(refresh)
    assert refresh[0] == reader_choices.FASTEST_S
    assert refresh[-1] <= reader_choices.SLOWEST_S


def test_address_keeps_its_moments_when_another_zone_is_chosen():
    found = reader_choices.in_zone(
        "/sites/a/?from=2026-01-05T12:00:00&to=2026-01-05T13:00:00&zone=UTC", "Europe/Berlin"
    )
    assert dict(QueryDict(found.partition("?")[2]).items()) == {
        "from": "2026-01-05T13:00:00", "to": "2026-01-05T14:00:00", "zone": "Europe/Berlin"
    }  # fmt: skip
    assert reader_choices.in_zone("/sites/?sort=name", "Europe/Berlin") == "/sites/?sort=name"
