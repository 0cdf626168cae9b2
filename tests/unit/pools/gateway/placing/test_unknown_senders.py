"""Requests in an engine that no gateway has sent: they are found in the agent's reports, and hold the clock up."""

from __future__ import annotations

import msgspec
import pytest

from core.ports import RequestFeatures
from pools import wire
from pools.gateway.fleet.instance import Instance
from pools.gateway.placing.clock_requests import ClockRequests, PendingClockRequest
from pools.gateway.placing.projected_admission import AdmissionGate
from pools.gateway.placing.projections import InstanceProjection
from pools.gateway.placing.unknown_senders import UnknownSenders
from tests.fakes.fleet import MODEL
from tests.unit.pools.gateway.placing.test_dispatch_laws import House
from tests.unit.pools.gateway.placing.test_routes import Here

TOP = 1410.0


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    InstanceProjection("Llama3-70B", "A100-80GB", 4, "vllm-v1").warm_up()


def reported(instance: Instance, running: int | None, waiting: int = 0) -> None:
    """A new report of the agent comes."""
    state = msgspec.structs.replace(instance.state, running=running, waiting=waiting)
    instance.update(state, instance.pool, instance.rank, (instance.reported_at_s or 0.0) + 1.0)


class Watched:
    """A service whose clocks are asked for here, under an objective that leaves all the time in the world."""

    def __init__(self, **policy: object) -> None:
        self.asks: list[PendingClockRequest] = []
        self.gate = AdmissionGate(ClockRequests(self.asks.append), Here())  # type: ignore[arg-type]
        self.house = House(1, self.gate, **policy)
        self.house.fake.objectives = wire.LatencyLimits(None, 1.0, 900.0)
        self.house.publish()
        (self.instance,) = self.house.instances
        projection = self.gate._projection(self.house.view.services[MODEL], self.instance)
        assert projection is not None
        projection.fit(self.house.view.services[MODEL])

    def look(self) -> None:
        self.gate.look(self.house.view.services)


RULES = ({"admission": "projection", "throttle": True}, {"retail": True})


@pytest.mark.parametrize("policy", RULES, ids=["throttle", "retail"])
async def test_clock_is_the_top_one_while_somebody_else_sends_to_the_engine_and_says_so(
    policy: dict[str, object],
) -> None:
    watched = Watched(**policy)
    await watched.house.come(watched.house.call())
    low = watched.asks[-1].mhz
    assert low < 800.0
    reported(watched.instance, running=1)
    watched.look()
    assert len(watched.asks) == 1, "its own request is all that there is"
    reported(watched.instance, running=3, waiting=1)
    watched.look()
    assert (watched.asks[-1].mhz, watched.asks[-1].reason) == (TOP, "no_data")
    assert watched.asks[-1].summary.startswith("The top clock: 3 in the engine were sent by nobody known")
    await watched.house.come(watched.house.call())
    assert watched.asks[-1].mhz == TOP, "an admission lowers nothing meanwhile"
    reported(watched.instance, running=2)
    watched.look()
    assert watched.asks[-1].mhz < 800.0, "they have ended"
    await watched.house.clear()


async def test_requests_that_have_ended_since_the_report_are_nobody_elses() -> None:
    house, others = House(1), UnknownSenders()
    (instance,) = house.instances
    counts = [others.count(instance, known) for known in (0, 5, 2)]
    reported(instance, running=5)
    counts.append(others.count(instance, 1))
    assert counts == [0, 0, 0, 0], "the report is of a moment when five were there"
    reported(instance, running=5)
    assert others.count(instance, 1) == 0, "so may this one be, where reports are slow"
    reported(instance, running=5)
    assert others.count(instance, 1) == 4
    reported(instance, running=None)
    assert others.count(instance, 1) == 0, "nothing is reported"
    reported(instance, running=5)
    instance.goes_silent()
    assert others.count(instance, 1) == 0, "an old report tells nothing"


async def test_answers_that_one_request_asks_for_are_all_its_own() -> None:
    watched = Watched(admission="projection", throttle=True)
    features = RequestFeatures(chat=True, at_s=0.0, sequences=4)
    await watched.house.come(watched.house.call(features=features))
    reported(watched.instance, running=4)
    watched.look()
    assert len(watched.asks) == 1
    await watched.house.clear()
