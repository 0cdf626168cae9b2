from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.controllers.fleet.autoscale import (
    AutoscaleConfig,
    AutoscaleObservation,
    AutoscaleState,
    EngineSize,
    covering,
    step,
)
from core.engine.measured import Basis
from core.types import CancelShadow, Mode, Reason, Source, StartShadow

GPU = "A100-40GB"
TP1, TP2, TP4 = (Mode(GPU, tp) for tp in (1, 2, 4))
# Llama2-13B, table II of the paper; spawn times are ours.
CONFIG = AutoscaleConfig((EngineSize(TP1, 1.125, 25.0), EngineSize(TP2, 4.0, 30.0), EngineSize(TP4, 7.5, 40.0)))
CALM = AutoscaleObservation(now_s=1000.0, instance="i1", mode=TP2, shadow=None, rps=2.0)
OLD = AutoscaleState(TP2, grace_until_s=900.0)


@pytest.mark.parametrize(("rps", "size"), [(0.0, 0), (1.125, 0), (1.13, 1), (4.0, 1), (4.01, 2), (7.5, 2), (99.0, 2)])
def test_smallest_size_is_taken_when_it_covers_the_load(rps: float, size: int) -> None:
    assert covering(CONFIG, rps) == size


def test_engine_stays_and_its_grace_is_renewed_when_the_load_is_in_its_range() -> None:
    state, effects = step(OLD, CALM, CONFIG)
    assert effects.commands == ()
    assert effects.rationale.reason is Reason.NO_CHANGE
    assert state == AutoscaleState(TP2, 1030.0)
    assert effects.next_tick_s == 1010.0


@pytest.mark.parametrize("state", [OLD, AutoscaleState(TP2, 1e9), None])
def test_larger_engine_is_started_when_the_load_outgrows_the_present_one(state: AutoscaleState | None) -> None:
    _, effects = step(state, replace(CALM, rps=5.0), CONFIG)
    assert effects.commands == (StartShadow("i1", TP4),)
    assert effects.rationale.reason is Reason.CONGESTED
    assert [it.label for it in effects.rationale.alternatives if it.chosen] == [TP4.name]


def test_decision_names_what_the_rates_rest_on() -> None:
    small, *others = CONFIG.sizes
    config = AutoscaleConfig((replace(small, basis=Basis(Source.CALIBRATED, 7.0)), *others))
    _, effects = step(OLD, CALM, config)
    assert effects.rationale.inputs["profiles"] == {TP1.name: {"source": "calibrated", "measured_at_s": 7.0}}


def test_largest_engine_is_started_at_once_when_the_load_needs_it() -> None:
    _, effects = step(None, replace(CALM, mode=TP1, rps=7.0), CONFIG)
    assert effects.commands == (StartShadow("i1", TP4),)


def test_smaller_engine_is_started_when_grace_is_over_and_not_before() -> None:
    quiet = replace(CALM, rps=1.0)
    state, effects = step(AutoscaleState(TP2, 1000.5), quiet, CONFIG)
    assert effects.commands == ()
    assert effects.rationale.reason is Reason.GRACE
    assert state.grace_until_s == 1000.5  # not renewed: the load is not in its range
    _, effects = step(state, replace(quiet, now_s=1010.0), CONFIG)
    assert effects.commands == (StartShadow("i1", TP1),)
    assert effects.rationale.reason is Reason.SLACK


def test_engine_has_its_spawn_time_of_grace_when_it_has_just_taken_over() -> None:
    state, effects = step(OLD, replace(CALM, mode=TP4, rps=1.0), CONFIG)
    assert state == AutoscaleState(TP4, 1040.0)
    assert effects.rationale.reason is Reason.GRACE


def test_largest_engine_stays_when_the_load_is_beyond_it() -> None:
    state, effects = step(AutoscaleState(TP4, 900.0), replace(CALM, mode=TP4, rps=9.0), CONFIG)
    assert effects.commands == ()
    assert effects.rationale.reason is Reason.AT_LIMIT
    assert state.grace_until_s == 900.0  # beyond its range, as much as below


def test_nothing_changes_when_the_load_is_unknown() -> None:
    _, effects = step(OLD, replace(CALM, rps=None), CONFIG)
    assert effects.commands == ()
    assert effects.rationale.reason is Reason.NO_DATA


@pytest.mark.parametrize(
    ("mode", "shadow", "rps", "commands"),
    [
        (TP1, TP2, 3.0, ()),
        (TP1, TP2, 5.0, (CancelShadow("i1"), StartShadow("i1", TP4))),
        (TP1, TP2, 0.5, ()),  # it takes over all the same, and its grace decides
        (TP2, TP1, 0.5, ()),
        (TP2, TP1, 2.0, (CancelShadow("i1"),)),
        (TP2, TP1, 5.0, (CancelShadow("i1"), StartShadow("i1", TP4))),
        (TP4, TP1, 2.0, (CancelShadow("i1"), StartShadow("i1", TP2))),
        (TP4, TP1, 9.0, (CancelShadow("i1"),)),
    ],
)
def test_shadow_is_kept_unless_it_is_too_small_by_now(
    mode: Mode, shadow: Mode, rps: float, commands: tuple[object, ...]
) -> None:
    _, effects = step(AutoscaleState(mode, 0.0), replace(CALM, mode=mode, shadow=shadow, rps=rps), CONFIG)
    assert effects.commands == commands


@dataclass
class Site:
    """An engine that carries the commands out: a shadow takes over once its spawn time is past."""

    mode: Mode
    shadow: Mode | None = None
    ready_s: float = 0.0

    def carry_out(self, commands: tuple[object, ...], now_s: float) -> None:
        for command in commands:
            if isinstance(command, CancelShadow):
                assert self.shadow is not None
                self.shadow = None
            if isinstance(command, StartShadow):
                assert self.shadow is None
                assert command.mode != self.mode
                self.shadow = command.mode
                self.ready_s = now_s + next(size.spawn_s for size in CONFIG.sizes if size.mode == command.mode)

    def at(self, now_s: float) -> bool:
        """Whether a shadow took over."""
        if self.shadow is None or now_s < self.ready_s:
            return False
        self.mode, self.shadow = self.shadow, None
        return True


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.0, 9.0), min_size=20, max_size=60))
def test_no_smaller_engine_is_started_within_grace_when_the_load_does_anything(loads: list[float]) -> None:
    site, state = Site(TP2), None
    spared_until_s = 30.0
    for n, rps in enumerate(loads):
        now_s = 10.0 * n
        size = {it.mode: it for it in CONFIG.sizes}
        if site.at(now_s):
            spared_until_s = now_s + size[site.mode].spawn_s
        if CONFIG.sizes[covering(CONFIG, rps)].mode == site.mode and rps <= size[site.mode].max_rps:
            spared_until_s = max(spared_until_s, now_s + size[site.mode].spawn_s)
        obs = AutoscaleObservation(now_s, "i1", site.mode, site.shadow, rps)
        state, effects = step(state, obs, CONFIG)
        for command in effects.commands:
            if isinstance(command, StartShadow) and command.mode.tp < site.mode.tp and site.shadow is None:
                assert now_s >= spared_until_s
        site.carry_out(effects.commands, now_s)
        coming = site.mode if site.shadow is None else max(site.mode, site.shadow, key=lambda mode: mode.tp)
        assert coming.tp >= CONFIG.sizes[covering(CONFIG, rps)].mode.tp  # up always


@settings(deadline=None, max_examples=30)
@given(st.floats(0.0, 9.0))
def test_engine_ends_at_the_size_that_covers_a_constant_load(rps: float) -> None:
    site, state = Site(TP2), None
    for n in range(20):
        site.at(10.0 * n)
        state, effects = step(state, AutoscaleObservation(10.0 * n, "i1", site.mode, site.shadow, rps), CONFIG)
        site.carry_out(effects.commands, 10.0 * n)
    assert site.mode == CONFIG.sizes[covering(CONFIG, rps)].mode


def test_engine_is_refused_when_it_is_not_among_the_sizes() -> None:
    with pytest.raises(ValueError, match="not among the sizes"):
        step(None, replace(CALM, mode=Mode("H100", 2)), CONFIG)


@pytest.mark.parametrize(
    "sizes",
    [
        (),
        (EngineSize(TP1, 0.0, 1.0),),
        (EngineSize(TP1, 2.0, 1.0), EngineSize(TP2, 2.0, 1.0)),
        (EngineSize(TP2, 2.0, 1.0), EngineSize(TP1, 3.0, 1.0)),
        (EngineSize(TP1, 2.0, -1.0),),
    ],
)
def test_configuration_is_refused_when_sizes_do_not_ascend(sizes: tuple[EngineSize, ...]) -> None:
    with pytest.raises(ValueError, match="sizes"):
        AutoscaleConfig(sizes)
