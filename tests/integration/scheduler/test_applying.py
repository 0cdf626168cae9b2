"""A run's policy is the service's own once it is applied: every knob and every field of tuning, one to one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from core.policy import presets
from core.policy.setting_texts import SETTINGS, stored, value_of
from pools.models import Service
from scheduler.models import Study, StudyRun
from scheduler.whatif import applying
from scheduler.whatif.errors import BadStudy
from tests.fakes.policy_values import values


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_setting_of_a_run_is_the_services_when_it_is_applied(name: str) -> None:
    preset, given = presets.PRESETS[name], 0
    for key in SETTINGS:
        for value in values(key, value_of(preset, key)):
            own = stored({key: value})
            try:
                wanted = presets.policy(name, own)
            except ValueError as error:
                with pytest.raises(BadStudy, match=f"^policy: {re.escape(str(error))}$"):
                    applying.of(run(name, own))
                continue
            found = applying.of(run(name, own))
            service = Service(policy=found.policy, knobs=dict(found.knobs))
            assert presets.policy(service.policy, service.knobs) == wanted
            assert service.own_policy().tuning == wanted.tuning
            given += 1
    assert given > 80


def test_keys_of_the_scenarios_own_section_are_applied_below_the_runs() -> None:
    section = {"name": "freesh", "routing": "least_loaded", "alpha": 1.3, "tuning": {"miad": {"increase": 3.0}}}
    own = {"alpha": 1.5, "tuning": {"miad": {"decrease_mhz": 50.0}}}

    found = applying.of(run("freesh", own, section, "policy.preempts_s=4"))

    tuning = {"miad": {"increase": 3.0, "decrease_mhz": 50.0}}
    assert found.knobs == {"alpha": 1.5, "preempts_s": 4, "route": "least_loaded", "tuning": tuning}
    assert applying.of(run("min_energy", own, section)).knobs == own  # that section is another policy's


def run(name: str, own: dict[str, Any], section: str | dict[str, Any] = "single_pool", *changes: str) -> StudyRun:
    study = Study(name="tiny", scenario={"policy": section})
    return StudyRun(study=study, index=0, policy=name, knobs=own, changes=list(changes))
