"""Every preset is what its paper says, and nonsense is refused with words."""

from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.policy.knobs import Knobs
from core.policy.presets import DEFAULT, PRESETS, policy
from core.policy.tuning import Tuning
from core.types import Loop
from pools import wire

BASELINES = {
    "freesh": ("freesh_baseline", "min_energy"),
    "dynamollm": ("single_pool", "multi_pool", "scale_inst", "scale_shard", "scale_freq"),
    "throttllem": ("triton", "retail"),
    "muserve": ("alpaserve", "alpaserve_sched", "alpaserve_scaling"),
    "dynaserve": ("pd_coloc", "pd_disagg"),
    "voltanallm": (),
    "biscale": (),
}
OWN = {"greenserve", "greenserve_epochs"}
YARDSTICKS = {"least_loaded", "disaggregated", "threshold"}


def differ(one, other):
    """Returns the knobs, and the fields of tuning with their record, that differ between two presets."""
    mine, others = PRESETS[one], PRESETS[other]
    found = {name for name, value in asdict(mine.knobs).items() if value != asdict(others.knobs)[name]}
    tuned = asdict(others.tuning)
    return found | {
        f"{record}.{name}"
        for record, values in asdict(mine.tuning).items()
        for name, value in values.items()
        if value != tuned[record][name]
    }


def test_every_policy_and_baseline_of_the_papers_is_there():
    of_papers = {*BASELINES, *(name for names in BASELINES.values() for name in names)}
    assert set(PRESETS) == {*OWN, *YARDSTICKS, *of_papers}
    assert all(policy(name) == found for name, found in PRESETS.items())


def test_baselines_differ_in_the_knob_that_their_paper_names():
    shares = {"plan_ttft_share", "plan_tpot_share", "clock_ttft_share", "clock_tpot_share"}
    assert differ("single_pool", "multi_pool") == {"partition", "class_limits", "route", *shares}
    from_nothing = {"starts.warm_pool", "starts.weights_cached"}
    assert differ("scale_inst", "multi_pool") == {"scale", "hand_down", "proactive", *from_nothing}
    assert differ("scale_shard", "multi_pool") == {"shard"}
    assert differ("scale_freq", "multi_pool") == {"clock", "clock_period_s"}
    assert differ("freesh", "min_energy") == {"objective"}
    assert differ("alpaserve", "alpaserve_sched") == {"order", "engine_priority"}
    assert differ("alpaserve_sched", "alpaserve_scaling") == {"clock"}
    assert differ("alpaserve_scaling", "muserve") == {"placement.kind"}
    assert differ("pd_coloc", "pd_disagg") == {"split"}
    assert differ("single_pool", "least_loaded") == {"route"}
    assert differ("triton", "retail") == {"clock"}
    assert differ("throttllem", "triton") == {"scale", "scale_period_s", "shadow", "clock", "clock_floor", "admission"}


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("x", {}, "unknown policy 'x'; known are greenserve, greenserve_epochs"),
        ("freesh", {"clok": 1}, "unknown knob 'clok'; known are carbon"),
        ("freesh", {"clock": "slow"}, "clock: unknown 'slow'; known: fixed, miad"),
        ("freesh", {"clock": 1}, "clock: must be a text, not 1"),
        ("freesh", {"alpha": 0.9}, "alpha: must be at least 1, not 0.9"),
        ("freesh", {"alpha": "1"}, "alpha: must be a number, not '1'"),
        ("freesh", {"alpha": None}, "alpha: must be a number, not None"),
        ("freesh", {"clock_period_s": "1"}, "clock_period_s: must be a number or null, not '1'"),
        ("freesh", {"alpha": float("nan")}, "alpha: must be a finite number"),
        ("freesh", {"shadow": 1}, "shadow: must be true or false, not 1"),
        ("freesh", {"tp": True}, "tp: must be a whole number, not True"),
        ("freesh", {"max_wait_s": 0}, "max_wait_s: must be above 0"),
        ("freesh", {"plan_ttft_share": 1.1}, "plan_ttft_share: must be at most 1"),
        ("freesh", {"slo_factor": 7}, "slo_factor: must be one of 5, 10, 20, not 7"),
        ("freesh", {"frozen": ["clock"]}, "frozen: unknown 'clock'; known: carbon, scale"),
        ("freesh", {"frozen": 1}, "frozen: must be a list of names, not 1"),
        ("freesh", {"tenant_weights": {"acme": 0}}, "tenant_weights.acme: must be above 0"),
        ("freesh", {"tenant_weights": {"acme": "x"}}, "tenant_weights.acme: must be a number"),
        ("freesh", {"max_rps": {"2": 1.0}}, "max_rps.2: is not a TP degree; write tp1"),
        ("freesh", {"max_rps": {"tp1": 4.0, "tp2": 1.0}}, "max_rps: must ascend with the TP degree"),
        ("freesh", {"scale": "dynamo"}, "needs carbon=off"),
        ("freesh", {"shard": "dynamo"}, "set carbon=off"),
        ("single_pool", {"partition": ""}, "name it, for example partition=whole"),
        ("throttllem", {"shard": "mix"}, "it needs shard=off"),
        ("dynamollm", {"freeze_tp": True}, "freeze_tp: is for scale=fleet"),
        ("dynaserve", {"route": "round_robin"}, "route: must be predicted"),
        ("freesh", ["clock"], "knobs are an object"),
        ("freesh", {"tuning": ["miad"]}, "tuning: is an object of records"),
        ("freesh", {"tuning": {"maid": {}}}, "tuning.maid: unknown record; known: eq1, miad"),
        ("freesh", {"tuning": {"miad": 2}}, "tuning.miad: is an object of fields, not 2"),
        ("freesh", {"tuning": {"miad": {"up": 2}}}, "tuning.miad.up: unknown field; known: increase, decrease_mhz"),
        ("freesh", {"tuning": {"miad": {"increase": 1}}}, "tuning.miad.increase: must be above 1"),
        ("freesh", {"tuning": {"slack": {"reserve": 1.0}}}, "tuning.slack.reserve: must be below 1"),
        ("muserve", {"tuning": {"placement": {"group_gpus": [0]}}}, "group_gpus: must be at least 1, not 0"),
        ("muserve", {"tuning": {"placement": {"group_gpus": [1.5]}}}, "group_gpus: must be whole numbers"),
        ("threshold", {"tuning": {"threshold": {"kv_low": 0.8}}}, "threshold.kv_low: must be below kv_high, 0.7"),
    ],
)
def test_nonsense_is_refused_with_words(name, overrides, words):
    with pytest.raises(ValueError, match=words):
        policy(name, overrides)


def test_knobs_and_tuning_are_set_when_they_make_sense():
    overrides = {"clock": "fixed", "alpha": 2, "tenant_weights": {"acme": 2}, "tuning": {"dynamo": {"wave": 4}}}
    found = policy("dynamollm", overrides)
    assert (found.knobs.clock, found.knobs.alpha, found.knobs.tenant_weights) == ("fixed", 2.0, {"acme": 2})
    assert (found.knobs.shard, found.tuning.dynamo.wave, found.tuning.dynamo.shard_alpha) == ("dynamo", 4, 1.1)
    assert found.overrides == overrides
    assert policy("freesh", {"frozen": ["scale", "carbon"]}).knobs.frozen == ("carbon", "scale")


def test_off_is_the_word_when_yaml_has_read_it_as_false():
    assert policy("freesh", {"shard": False}).knobs.shard == "off"


def test_the_name_of_before_is_read():
    assert policy("right_size", {"alpha": 1.1}) == policy("greenserve", {"alpha": 1.1})


def test_every_field_has_words():
    records = [Knobs(), *(getattr(Tuning(), item.name) for item in fields(Tuning))]
    assert all(item.metadata["doc"] for record in records for item in fields(record))
    assert all(record.__doc__ for record in records)


@given(
    st.sampled_from(list(PRESETS)),
    st.dictionaries(
        st.sampled_from([f.name for f in fields(Knobs)]), st.none() | st.booleans() | st.integers() | st.text()
    ),
)
def test_any_overrides_are_taken_or_refused_with_words(name, overrides):
    try:
        found = policy(name, overrides).knobs
    except ValueError:
        return
    for key, value in overrides.items():
        assert getattr(found, key) == ("off" if value is False and isinstance(getattr(found, key), str) else value)


def test_periods_and_rest_are_the_policys():
    assert PRESETS["throttllem"].knobs.period_s(Loop.SCALE, 1800.0) == 10.0
    assert PRESETS["freesh"].knobs.period_s(Loop.SCALE, 1800.0) == 1800.0
    assert policy("freesh", {"carbon_period_s": 600}).knobs.period_s(Loop.CARBON, 1800.0) == 600.0
    assert PRESETS["dynamollm"].knobs.period_s(Loop.CLOCK, 1.0) == 5.0
    assert [loop for loop in Loop if PRESETS["single_pool"].knobs.has_no_choice(loop)] == list(Loop)
    assert [loop for loop in Loop if PRESETS["greenserve_epochs"].knobs.has_no_choice(loop)] == []
    assert [loop for loop in Loop if PRESETS["greenserve"].knobs.has_no_choice(loop)] == [Loop.SHARD]


def test_new_services_get_greenserve():
    assert DEFAULT == "greenserve"


def test_request_policy_has_a_knob_for_each_field():
    names = {item.name for item in fields(Knobs)}
    others = {name for name in wire.RequestPolicy.__struct_fields__ if name not in names}
    flags = {"throttle", "retail", "deadline", "iteration"}
    assert others == flags | {"aging_measured", "predictor_error_measured", "tuning", "wake_patience_s"}
    for name in wire.RequestTuning.__struct_fields__:
        record, _, field = name.partition("_")
        own = getattr(Tuning(), record)
        assert getattr(wire.RequestTuning(), name) == (getattr(own, field) if field else own)
    assert all(
        getattr(Knobs(), name) == getattr(wire.RequestPolicy(), name)
        for name in wire.RequestPolicy.__struct_fields__
        if name in names - {"aging_tokens_per_s", "predictor_error"}  # measured, unless they are set: flags say so
    )
