"""Trials whose stored knobs are beyond what there can be: they come within it, or end and say why."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.utils import timezone

from pools.access.audit import Actor
from pools.models import AuditEntry, Service
from scheduler.models import Trial, TrialState
from scheduler.trials import turns
from tests.fakes import seed

pytestmark = pytest.mark.django_db
ABSURD = {"carbon_period_s": 1e12}
HOUR = timedelta(hours=1)


@pytest.fixture
def trial(redis_client: Any) -> Trial:
    given = {"policy_a": "single_pool", "policy_b": "freesh", "block_h": 1, "pairs": 2, "warm_up_s": 900}
    given |= {"begins_at": timezone.now() + timedelta(minutes=1), "reason": "proof"}
    return turns.plan(Actor(), Trial(service=seed.fleet().service, **given))


def ended(trial: Trial) -> tuple[str, str]:
    trial.refresh_from_db()
    return trial.state, trial.ended_why


def test_stored_knobs_of_a_running_trial_come_within_their_bounds_and_it_goes_on(trial):
    turns.turn(trial.begins_at)
    Trial.objects.update(knobs_a=ABSURD, knobs_b=ABSURD, former_knobs=ABSURD)
    Service.objects.filter(pk=trial.service_id).update(knobs={"carbon_period_s": 31 * 86_400.0})
    import_module("scheduler.migrations.0009_trials_within_bounds").bring_within(apps, None)
    trial.refresh_from_db()
    assert trial.knobs_a == trial.knobs_b == trial.former_knobs == {"carbon_period_s": 31 * 86_400.0}
    entry = AuditEntry.objects.get(action="brought within bounds")
    assert (entry.kind, entry.object_key) == ("trial", str(trial.pk))
    assert entry.before["knobs_a"] == ABSURD
    assert turns.turn(trial.begins_at + HOUR) == 1
    assert ended(trial) == (TrialState.RUNNING, "")


def test_trial_that_is_over_keeps_the_knobs_that_it_had(trial):
    Trial.objects.update(state=TrialState.DONE, knobs_a=ABSURD)
    import_module("scheduler.migrations.0009_trials_within_bounds").bring_within(apps, None)
    trial.refresh_from_db()
    assert trial.knobs_a == ABSURD
    assert not AuditEntry.objects.filter(action="brought within bounds").exists()


def test_trial_ends_and_says_why_when_its_service_cannot_have_its_policy(trial):
    former = Service.objects.get(pk=trial.service_id).policy
    Trial.objects.update(knobs_a=ABSURD, knobs_b=ABSURD)
    turns.turn(trial.begins_at)
    state, why = ended(trial)
    assert state == TrialState.CANCELLED
    assert "cannot have policy" in why
    assert "carbon_period_s: must be at most" in why
    service = Service.objects.get(pk=trial.service_id)
    assert (service.policy, service.configured_policy().name) == (former, former)


def test_trial_ends_when_the_policy_of_before_cannot_come_back(trial):
    turns.turn(trial.begins_at)
    Trial.objects.update(former_knobs=ABSURD)
    turns.turn(trial.begins_at + 4 * HOUR)
    state, why = ended(trial)
    assert state == TrialState.DONE
    assert "cannot have its policy of before" in why
