"""Gives the policy of a run to a service that is live, advising first unless one says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from core.policy import presets
from core.policy.old_names import renamed
from core.policy.presets import PRESETS
from core.policy.setting_texts import without_effect
from core.simulator.fields import ScenarioError
from pools.access import audit
from pools.access.audit import Actor
from pools.models import Service
from scheduler.models import ControlMode, StudyRun
from scheduler.operations import pauses
from scheduler.operations.configure import changes

from . import scenario_documents, studies
from .errors import BadStudy


@dataclass(frozen=True, slots=True)
class Application:
    """The policy that would be applied, and what is set otherwise than in its preset: the run's, and below it the
    scenario's own.

    `without_effect`: sentences on what is stored and changes nothing live.
    """

    policy: str
    knobs: Mapping[str, Any]
    without_effect: tuple[str, ...]


def of(run: StudyRun) -> Application:
    """Raises BadStudy when there is no such policy live."""
    try:
        keys = scenario_documents.for_run(run.study.scenario, studies.spec_of(run))["policy"]
        policy = keys.pop("name")
        given, _ = renamed(PRESETS[policy], keys)
        found = presets.policy(policy, given)
    except (ScenarioError, ValueError, KeyError) as error:
        raise BadStudy("policy", str(error)) from None
    return Application(policy, found.overrides, without_effect(found.overrides))


@transaction.atomic
def apply(actor: Actor, run: StudyRun, service: Service, advise: bool = True) -> Application:
    """Sets the service's policy, after its control mode to advise where asked: then the one in force stays. Audited.

    Raises:
        BadStudy: There is no such policy live, or the service cannot have it; the words say why.
        PermissionDenied: The actor may not change services.
    """
    found = of(run)
    if advise:
        pauses.set_control_mode(actor, service, ControlMode.ADVISE)
    service.policy, service.knobs = found.policy, dict(found.knobs)
    try:
        changes.update(actor, service)
    except ValidationError as error:
        raise BadStudy("service", " ".join(error.messages)) from None
    audit.record(actor, "applied", run.study, None, {"run": run.label, "service": service.name, "advise": advise})
    return found
