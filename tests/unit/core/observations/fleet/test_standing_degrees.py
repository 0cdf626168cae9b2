"""Frozen TP degrees: those that stand stay, in both worlds."""

from __future__ import annotations

import pytest

from core.observations.fleet.standing_degrees import with_standing_degrees
from core.simulator.policies import read_policy
from core.simulator.policies.freesh import Freesh, scale
from core.simulator.policies.view_observations import first_view
from core.types import Mode, ModeProfile, Source
from tests.unit.core.simulator.policies.worlds import world

PROFILE = ModeProfile(1.0, 100.0, None, None, None, Source.MODELLED)
PROFILES = {Mode("A100-80GB", 2): PROFILE, Mode("A100-80GB", 4): PROFILE, Mode("H100-SXM-80GB", 4): PROFILE}


def test_modes_of_standing_degrees_are_left_on_any_gpu():
    found = with_standing_degrees(PROFILES, {Mode("A100-80GB", 4): 2, Mode("A100-80GB", 2): 0})
    assert list(found) == [Mode("A100-80GB", 4), Mode("H100-SXM-80GB", 4)]


def test_all_modes_are_left_where_no_worker_stands():
    assert with_standing_degrees(PROFILES, {}) == PROFILES


@pytest.mark.parametrize("frozen", [True, False])
def test_simulated_scale_chooses_among_standing_degrees_when_they_are_frozen(monkeypatch, frozen):
    given, step = [], scale.step
    monkeypatch.setattr(scale, "step", lambda state, obs, config: given.append(obs) or step(state, obs, config))
    policy = Freesh(
        read_policy({"name": "min_energy", "freeze_tp": frozen}), world({"east": 16}, tps=(2, 4, 8), rps=2.0)
    )
    policy.begin()
    given.clear()
    policy.scale(first_view(policy.world), [])
    pools = [pool for obs in given for pool in obs.pools]
    assert pools
    assert all(pool.workers for pool in pools)
    kept = [{mode.tp for mode in pool.profiles} == {mode.tp for mode in pool.workers} for pool in pools]
    assert all(kept) == frozen
