"""A web server of recorded answers, and what adapters get of the world, with keys that no error may show."""

from dataclasses import replace

import pytest

from telemetry.providers.provider_http import Bounds, Outside, Pace
from telemetry.providers.secrets import VARIABLES, Secret
from tests.fakes.web import Clock, serving

KEYS = {name: Secret(f"sEcReT-{number}-of-nobody") for number, name in enumerate(VARIABLES)}
QUICK = Bounds(connect_s=10.0, read_s=20.0, total_s=30.0, body_bytes=1 << 20)


@pytest.fixture
def web():
    with serving() as found:
        yield found


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def outside(clock):
    return Outside(secrets=KEYS, pace=Pace(clock, clock.sleep), bounds=QUICK, loopback=True)


@pytest.fixture
def make(web, outside):
    """Makes an adapter that asks the local server."""

    def adapter(kind, bounds=None, **config):
        own = outside if bounds is None else replace(outside, bounds=bounds)
        return kind({"base_url": web.url, **config}, own)

    return adapter
