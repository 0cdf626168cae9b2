"""The rules of queues, which are one for all simulated policies and those of gateways."""

from __future__ import annotations

import pytest

from core.algorithms.queue.ssjf import measured_aging
from core.simulator.kernel.simulated import Scheduling
from core.simulator.policies import build, read_policy
from core.simulator.policies.scheduling import Served, queue_of, token_times_s
from core.types import Limits
from tests.unit.core.simulator.policies.worlds import world

WORLD = world({"east": 24}, tps=(8,), rps=2.0)
LIMITS = [info.limits for info in WORLD.services[0].partitions[0].classes]


def rules(policy: str, **own: object) -> Scheduling:
    """Returns the one set of rules that all instances of a policy's first fleet have."""
    (found,) = {member.spec.scheduling for member in build(read_policy({"name": policy, **own}), WORLD).members}
    return found


@pytest.mark.parametrize("policy", ["freesh", "greenserve_epochs", "dynamollm", "scale_freq", "single_pool"])
def test_shortest_job_first_ages_alike_under_every_policy(policy: str) -> None:
    measured = measured_aging(WORLD.services[0].long_tokens, LIMITS)
    assert rules(policy, order="sjf").aging == measured > 0.0
    assert rules(policy, order="sjf", aging_tokens_per_s=7.0).aging == 7.0
    assert rules(policy, order="sjf", aging_tokens_per_s=0.0).aging == 0.0


@pytest.mark.parametrize("policy", ["freesh", "dynamollm"])
def test_orders_by_work_know_how_long_tokens_take(policy: str) -> None:
    found = rules(policy, order="srtf")
    assert (found.token_s, found.prefill_token_s) == token_times_s(WORLD.templates[0])


def test_margin_counts_in_the_tokens_that_its_seconds_come_to_when_waiting_makes_jobs_shorter() -> None:
    served, spec = Served([Limits(e2e_s=20.0)], long_tokens=400.0), WORLD.templates[0]
    assert queue_of(spec, "sjf", None, served, 1.0, margin_s=2.0).margin == 2.0 * 400.0 / 20.0
    assert queue_of(spec, "sjf", 0.0, served, 1.0, margin_s=2.0).margin == 2.0
    assert queue_of(spec, "llf", None, served, 1.0, margin_s=2.0).margin == 2.0
