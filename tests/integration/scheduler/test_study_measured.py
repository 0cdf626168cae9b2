"""Studies of the fleet follow what was measured, and say so; papers' experiments do not."""

from __future__ import annotations

from typing import Any

import pytest

from core.engine import measured
from pools import engine_knowledge
from pools.access.audit import Actor
from scheduler.operations import engine_profiles
from scheduler.whatif import experiment_studies, study_requests, study_worker
from tests.fakes import seed
from tests.fakes.engine_profiles import rows

pytestmark = pytest.mark.django_db


def latency_s(operator: Actor) -> tuple[float, list[str]]:
    asked = {"base": "fleet", "changes": {"duration_s": 60}, "runs": ["least_loaded"]}
    study = study_requests.ask(asked, operator.user)
    assert study_worker.run(study.pk), list(study.runs.values_list("error", flat=True))
    return study.runs.get().figures["tpot_s"]["p50"], study.notes


def test_study_of_the_fleet_follows_what_was_measured(operator: Actor, redis_client: Any) -> None:
    card = seed.everything(minutes=6).service.model_card
    before_s, notes = latency_s(operator)
    assert not any("measured" in note for note in notes)
    for gpu in ("A100-80GB", "H100-SXM-80GB"):
        for tp in (1, 2, 4, 8):
            given = rows(1.5, 1.0, model=card.engine_model_name, gpu=gpu, tp=tp, measured_at="2026-11-02T08:30:00Z")
            engine_profiles.bring_in(Actor(), given, publish=True)
    engine_knowledge.refresh()
    after_s, notes = latency_s(operator)
    assert after_s > 1.2 * before_s
    assert any("goes by what was measured at 2026-11-02 08:30 UTC" in note for note in notes)


def test_what_was_measured_is_set_aside_for_papers_and_back_afterwards(operator: Actor) -> None:
    engine_profiles.bring_in(Actor(), rows(), publish=True)
    engine_knowledge.refresh()
    known = measured.profiles()
    assert known
    base = next(iter(experiment_studies.catalogue()))
    named = next(name for name in (base, f"experiment:{base}", f"lab:{base}") if experiment_studies.of(name))
    with study_worker._knowledge(named):
        assert measured.profiles() == ()
    assert measured.profiles() == known
    with study_worker._knowledge("fleet"):
        assert measured.profiles() == known
