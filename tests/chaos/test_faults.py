"""Each fault of a part on one running demo, with the same replay, and the replay by itself."""

from __future__ import annotations

import importlib.metadata
import time

import pytest

from tests.chaos import page, trial
from tests.chaos.fault import Fault
from tests.chaos.faults import EVERY
from tests.chaos.stand import Stand

pytestmark = [pytest.mark.slow("a whole product, and half a minute for each fault"), pytest.mark.chaos]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    part, words = metafunc.config.getoption("--part", None), metafunc.config.getoption("--fault", [])
    chosen = [one for one in EVERY if part in (None, one.part) and (not words or any(w in one.name for w in words))]
    if "fault" in metafunc.fixturenames:
        metafunc.parametrize("fault", chosen, ids=[fault.name for fault in chosen])
    if "longest_s" in metafunc.fixturenames:
        metafunc.parametrize("longest_s", [max((fault.lasts_s for fault in chosen), default=10.0)], ids=[""])


@pytest.fixture
def keep(request: pytest.FixtureRequest, stand: Stand):
    """Keeps what a trial found, for the page."""

    def keep(fault: Fault | None, found: trial.Found) -> None:
        part = request.config.getoption("--part")
        release = importlib.metadata.version("greenserve")
        page.keep(fault, part, found, time.strftime("%Y-%m-%d", time.gmtime()), release)
        print(f"\n{fault.name if fault else page.WITHOUT}: {found}")

    return keep


def test_every_request_is_answered_when_there_is_no_fault(stand: Stand, keep, longest_s: float) -> None:
    found = trial.take(stand, None, longest_s)
    keep(None, found)
    assert not found.broken
    assert found.requests.answered == found.requests.sent


def test_promise_holds_when_a_part_fails(stand: Stand, keep, fault: Fault) -> None:
    found = trial.take(stand, fault, fault.lasts_s)
    keep(fault, found)
    assert not found.broken
