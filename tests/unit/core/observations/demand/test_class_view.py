"""A class as it is observed: demand, lengths and profiles, by what was seen, declared and published."""

from dataclasses import replace

import pytest

from core.engine import measured
from core.engine.profiles import profiles_of
from core.observations.demand.class_arrivals import ClassArrivals
from core.observations.demand.class_view import (
    ENOUGH,
    ClassFacts,
    Declared,
    EngineChoice,
    observed,
    partition_option,
    typical_lengths,
)
from core.observations.mode_profile import Lengths, mode_profile
from core.types import Limits, Mode, ModeProfile, Source
from tests.fakes.engine_profiles import rows

A100 = "A100-80GB"
LIMITS = Limits(2.0, 0.15, None)
MODES = (Mode(A100, 4), Mode(A100, 8))
ENGINES = EngineChoice("Llama3-70B", "vllm-v1", MODES)
PUBLISHED = Source.PUBLISHED
TYPICAL = Lengths(1155.0, 211.0)
NOTHING = ClassArrivals(0, 0, 0.0, 0.0, None)
SEEN = ClassArrivals(ENOUGH, 10, ENOUGH * 500.0, ENOUGH * 100.0, None)
FACTS = ClassFacts("ALL", LIMITS, TYPICAL, SEEN, None, {})


def test_demand_is_the_peak_raised_by_what_is_foreseen():
    assert observed(FACTS, ENGINES, 3, (1.0, 2.0)).demand.demand_rps == (2.0, 4.0, 2.0)
    assert observed(FACTS, ENGINES, 1, (3.0, 2.0)).demand.demand_rps == (6.0,)


def test_declared_load_is_the_least():
    declared = Declared(3.0, Lengths(10.0, 20.0))
    assert observed(replace(FACTS, declared=declared), ENGINES, 2, (1.0, 2.0)).demand.demand_rps == (3.0, 4.0)


@pytest.mark.parametrize(
    ("seen", "declared", "lengths"),
    [
        (NOTHING, None, TYPICAL),
        (NOTHING, Declared(0.0, Lengths(10.0, 20.0)), Lengths(10.0, 20.0)),
        (ClassArrivals(ENOUGH - 1, 1, 63.0, 63.0, None), Declared(0.0, Lengths(10.0, 20.0)), Lengths(10.0, 20.0)),
        (ClassArrivals(1, 1, 7.0, 5.0, None), None, Lengths(7.0, 5.0)),
        (SEEN, Declared(9.0, Lengths(10.0, 20.0)), Lengths(500.0, 100.0)),
    ],
)
def test_lengths_are_seen_ones_when_enough_came_or_nothing_was_declared(seen, declared, lengths):
    found = observed(replace(FACTS, seen=seen, declared=declared), ENGINES, 1)
    assert found.lengths == lengths
    assert (found.demand.mean_prompt_tokens, found.demand.mean_output_tokens) == (
        lengths.prompt_tokens,
        lengths.output_tokens,
    )


def test_published_rate_counts_unless_requests_are_known_to_be_longer():
    rows = {
        MODES[0]: ModeProfile(1e3, 900.0, 0.1, 0.02, 3.0, PUBLISHED),
        MODES[1]: ModeProfile(0.01, 900.0, 0.1, 0.02, 3.0, PUBLISHED),
    }
    found = observed(replace(FACTS, published=rows), ENGINES, 1).profiles
    assert found[MODES[0]] == mode_profile("Llama3-70B", "vllm-v1", MODES[0], Lengths(500.0, 100.0).rounded, LIMITS)
    assert found[MODES[1]] == rows[MODES[1]]
    assert observed(replace(FACTS, published=rows, seen=NOTHING), ENGINES, 1).profiles == rows


def row(source: Source, max_rps: float = 1e3) -> ModeProfile:
    return ModeProfile(max_rps, 900.0, 0.1, 0.02, 3.0, source)


def test_what_was_measured_of_a_class_is_never_capped_by_a_model():
    rows = {MODES[0]: row(Source.MEASURED), MODES[1]: row(Source.MODELLED)}
    found = observed(replace(FACTS, published=rows), ENGINES, 1).profiles
    assert found[MODES[0]] == rows[MODES[0]]
    assert found[MODES[1]].max_rps < 1e3


@pytest.fixture
def measured_engine():
    (profile,) = profiles_of(rows(0.5, 0.9, model="Llama3-70B", tp=4, batches=(1, 64), contexts=(100, 4000)))
    measured.publish((profile,))
    yield mode_profile("Llama3-70B", "vllm-v1", MODES[0], Lengths(500.0, 100.0).rounded, LIMITS)
    measured.publish(())


@pytest.mark.parametrize("seen", [SEEN, NOTHING])
@pytest.mark.parametrize("published_rps", [0.0, 0.01, 1e3])
def test_a_measured_engine_counts_before_what_others_published(measured_engine, published_rps, seen):
    facts = replace(FACTS, published={MODES[0]: row(PUBLISHED, published_rps)}, seen=seen, typical=SEEN.lengths())
    assert measured.profiles()
    assert observed(facts, ENGINES, 1).profiles == {MODES[0]: measured_engine}


def test_a_measured_mode_counts_beside_those_that_others_published(measured_engine):
    rows = {MODES[1]: row(PUBLISHED, 0.01)}
    assert observed(replace(FACTS, published=rows), ENGINES, 1).profiles == {**rows, MODES[0]: measured_engine}
    measured_class = {MODES[0]: row(Source.MEASURED)}
    assert observed(replace(FACTS, published=measured_class), ENGINES, 1).profiles == measured_class


def test_class_is_planned_without_limits_when_no_mode_keeps_them():
    found = observed(replace(FACTS, limits=Limits(1e-6, None, None)), ENGINES, 1)
    assert found.demand.limits == Limits()
    assert found.servable
    assert found.input_faults.startswith(f"ALL: no mode keeps its limits ({A100}/TP4: ")
    assert not observed(FACTS, ENGINES, 1).input_faults


@pytest.mark.parametrize(
    ("limits", "kept", "left_out"),
    [
        (Limits(1.0, 0.1, 0.01), Limits(1.0, 0.1), "E2E of 0.01 s"),
        (Limits(1e-6, 0.1, 60.0), Limits(None, 0.1, 60.0), "TTFT of 1e-06 s"),
        (Limits(1.0, 1e-6, 1e-3), Limits(ttft_s=1.0), "E2E of 0.001 s and TPOT of 1e-06 s"),
    ],
)
def test_class_is_planned_with_the_limits_that_some_mode_keeps(limits, kept, left_out):
    found = observed(replace(FACTS, limits=limits), ENGINES, 1)
    assert found.demand.limits == kept
    assert found.input_faults == f"ALL: no mode keeps its limits ({left_out}), planned without them."
    assert found.profiles == observed(replace(FACTS, limits=kept), ENGINES, 1).profiles


def test_class_is_left_out_when_no_mode_is_known():
    nobody = observed(replace(FACTS, name="LL"), EngineChoice("Unheard-Of", "vllm-v1", MODES), 1)
    assert nobody.input_faults == "LL: no mode can serve it at all (no mode is known), left out."
    option = partition_option("p", [observed(FACTS, ENGINES, 1), nobody])
    assert [own.name for own in option.classes] == ["ALL"]
    assert set(option.profiles) == {("ALL", mode) for mode in MODES}


def test_typical_lengths_are_within_the_bounds():
    assert typical_lengths(0, None, 0, None) == TYPICAL
    assert typical_lengths(0, 256, 350, None) == Lengths(255.0, 350.0)
    assert typical_lengths(2000, 4000, 0, 1) == Lengths(2000.0, 1.0)


def test_published_degrees_are_left_out_when_the_gpus_cannot_share_the_heads():
    own = {Mode(A100, tp): ModeProfile(1.0, 900.0, 0.5, 0.05, 5.0, PUBLISHED) for tp in (3, 4)}
    found = observed(replace(FACTS, published=own), ENGINES, 1)
    assert set(found.profiles) == {Mode(A100, 4)}
    stranger = EngineChoice("Nobody-7B", "vllm-v1", ())
    assert set(observed(replace(FACTS, published=own), stranger, 1).profiles) == set(own)  # nobody knows its heads
