"""Live services read every knob and every field of tuning, but for those that say why they do not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from core.policy import presets
from core.policy.setting_texts import SETTINGS
from core.types import Loop
from pools.models import Node
from scheduler.control import epochs, service_policy, sleeping, turn_context
from scheduler.power import power_loop
from tests.fakes.house import moment, refresh_feeds, report_all, requests_came
from tests.fakes.policy_reading import watched

pytestmark = pytest.mark.django_db
# Policies whose loops have settings of their own.
POLICIES = (
    *(("greenserve_epochs", {}), ("greenserve", {}), ("dynamollm", {}), ("throttllem", {}), ("muserve", {})),
    ("threshold", {}),
    ("freesh", {"clock": "primal_dual"}),
    ("greenserve", {"sleep": "stop", "servers": "power_off"}),
)


def test_live_loops_gateways_and_agents_are_given_all_that_they_are_said_to_read(
    service, redis_client, now, monkeypatch
):
    seen: set[str] = set()
    made = presets.policy
    requests_came(now, count=300, over_s=100)
    Node.objects.update(power_port="simulated")
    for n, (name, own) in enumerate(POLICIES):
        at = now + timedelta(seconds=61.0 * n)
        service_policy.change(service, name, own)
        service.refresh_from_db()
        report_all(redis_client, at=at)
        refresh_feeds(at)
        with monkeypatch.context() as patched:
            patched.setattr(presets, "policy", lambda *given: watched(made(*given), seen))
            for loop in (Loop.CARBON, Loop.SCALE, Loop.SHARD):
                epochs.run(service, loop, at)
            sleeping.look(at)
            power_loop.look(at)

    only = {name for name, item in SETTINGS.items() if item.metadata["only"] and item.metadata["only"].world != "live"}
    assert set(SETTINGS) - seen == only


def test_the_carbon_loop_runs_at_the_policys_own_period_and_steps(service, redis_client, now):
    service_policy.change(service, "freesh", {"carbon_period_s": 600.0, "tuning": {"eq1": {"steps": 3}}})
    service.refresh_from_db()
    start = moment(int(now.timestamp()) // 600 * 600.0)

    def plan(after_s):
        at = start + timedelta(seconds=after_s)
        report_all(redis_client, at=at)
        refresh_feeds(at)
        return epochs.run(service, Loop.CARBON, at)

    assert plan(0.0).period_s == 600.0
    assert plan(599.0) is None
    assert plan(600.0).period_s == 600.0
    times = turn_context.resolve(service, now, ()).times
    assert (times.carbon_s, times.step_s) == (600.0, 200.0)
