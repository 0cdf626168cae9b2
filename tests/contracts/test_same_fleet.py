"""The contract of What-if: a study of today's fleet under a policy without a loop over instances is the fleet that the
policy gets live."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from django.db import transaction

from core.simulator.runs.runner import requests_of, run_scenario
from core.types import Loop, Mode
from pools.models import Site
from scheduler.control import epochs
from scheduler.whatif import fleet_scenario, scenario_documents
from scheduler.whatif.scenario_documents import RunSpec
from tests.fakes import minute as minutes
from tests.fakes.house import moment
from tests.fakes.minute import MINUTE

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("usual_periods")]

# Nodes that are not alike: 16 GPUs at each site.
PLACES = (replace(MINUTE.places[0], nodes=(8, 4, 4)), replace(MINUTE.places[1], nodes=(8, 6, 2)))
UNLIKE = replace(MINUTE, places=PLACES)
WORKLOAD = {"generate": "poisson", "rate_rps": 3.0, "duration_s": 4.0, "lengths": "azure-conv"}
Shapes = Counter[tuple[str, int]]  # instances by site and TP degree


def both(policy: str, client, **knobs) -> tuple[Shapes, Shapes]:
    """Returns what the live service is to have after its first turn, and the first fleet of a study of it."""
    minute, live = UNLIKE.before_anything(), Shapes()
    with transaction.atomic():
        service = minutes.rows(minute, policy, knobs)
        minutes.report_nodes(client, minute)
        now = moment(minute.now_s)
        epoch = epochs.run(service, Loop.CARBON, now)
        assert epoch is not None
        assert not epoch.error, epoch.error
        for pool in service.pools.select_related("site"):
            live.update({(pool.site.name, Mode.parse(name).tp): count for name, count in pool.workers.items() if count})
        made = fleet_scenario.draft(list(Site.objects.all()), {"chat": dict(WORKLOAD)}, now, None, now)
        transaction.set_rollback(True)
    document = scenario_documents.for_run(made.document, RunSpec(policy, knobs))
    with scenario_documents.opened(document, made.files) as scenario:
        run = run_scenario(scenario, requests_of(scenario))
    return live, Shapes((spec.site, spec.tp) for spec in run.fleet.instances)


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("single_pool", {}),
        ("single_pool", {"tp": 4}),
        ("least_loaded", {"partition": "four"}),
        ("multi_pool", {}),
        ("multi_pool", {"partition": "four"}),
        ("disaggregated", {}),
    ],
)
def test_a_study_has_the_fleet_that_live_has(policy, knobs, redis_client):
    live, studied = both(policy, redis_client, **knobs)
    assert live == studied
    assert sum(tp * count for (_, tp), count in live.items()) == 32
