"""Policies by name: the knobs and the tuning that make each the system of a paper, its baseline, or GreenServe's own.

A live service and a scenario name the same policies. Papers: FREESH (arXiv 2511.00807), DynamoLLM (HPCA 2025),
throttLL'eM (HPCA 2025), mu-Serve (USENIX ATC 2024), DynaServe, VoltanaLLM (arXiv 2509.04827), BiScale (arXiv
2602.18755).

Two partitions are known without an operator's doing: `whole`, one class of everything, for those who keep one pool, and
`dynamo`, the classes of DynamoLLM's table IV. The others are FREESH's, or an operator's own.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from core.policy.knobs import DYNAMO, WHOLE, Knobs, check_together
from core.policy.tuning import (
    PlacementTuning,
    ProfileTuning,
    RightSizeTuning,
    SplitTuning,
    StartsTuning,
    Tuning,
    changed,
)
from core.policy.value_rules import checked

DEFAULT = "greenserve"  # what a new service gets
OLD_NAMES = {"right_size": "greenserve"}  # up to 0.1; read for one version more


@dataclass(frozen=True, slots=True)
class Policy:
    """A named policy. `family`: which of the simulator's builders lays out its fleet; live loops go by knobs, and only
    what plans keep of the limits goes by the family.

    `overrides`: what is set otherwise than in the preset, knobs by name and `tuning` by record, as it was given.
    """

    name: str
    family: str
    knobs: Knobs
    tuning: Tuning = field(default_factory=Tuning)
    overrides: Mapping[str, Any] = field(default_factory=dict)


# What no paper but FREESH has: a carbon loop, and more than one kind of GPU to choose from.
_PLAIN = Knobs(
    carbon="off",
    partition=WHOLE,
    scale="static",
    shard="off",
    clock="fixed",
    route="least_loaded",
    order="fcfs",
    alpha=1.0,
    clock_ttft_share=1.0,
    clock_tpot_share=1.0,
)
# MIAD acts on latencies that it has seen: the next prompt of an idle engine is served at the lowest clock, and late by
# itself at the GPU's. (The paper's clocks fall to 300 MHz of 1,410, fig. 15.)
_FREESH = Knobs(
    route="weighted_round_robin",
    order="llf",
    engine_priority=True,
    preempts_s=1.0,
    alpha=1.1,
    clock_floor="voltage",
)
_DYNAMO = replace(
    _PLAIN,
    partition=DYNAMO,
    class_limits=True,
    plan_ttft_share=0.45,  # half of 0.9, since a request also waits for the iteration under way
    plan_tpot_share=0.9,
    clock_ttft_share=0.45,
    clock_tpot_share=0.9,
)
_THROTTLE = replace(_PLAIN, fill="enough", tp=4)
_SERVE = replace(_PLAIN, scale="placement")
_SJF = replace(_SERVE, order="sjf", engine_priority=True)
_PAIRS = replace(_PLAIN, tp=4)  # DynaServe's two groups need several instances at a site

_GREENSERVE = replace(
    _PLAIN,
    scale="right_size",
    scale_period_s=10.0,
    shadow=True,
    clock="deadline",
    clock_period_s=0.5,  # of clock=profile
    route="least_backlog",
    order="spf",
    aging_tokens_per_s=0.0,
    engine_priority=True,
    chunk_tokens=1536,
    alpha=1.02,
    plan_ttft_share=0.7,  # two prompts' chunks in an iteration, since a request also waits for the one under way
    plan_tpot_share=0.6,
    clock_ttft_share=0.7,  # what is left is for prompts that come meanwhile
    clock_tpot_share=0.95,  # and here for the time until a clock is set
)
# Prefill and decode on instances of their own, first come first served
_APART = replace(
    _PLAIN,
    split="prompt",
    route="least_loaded",
    clock_ttft_share=0.7,
    clock_tpot_share=0.9,
)
_DYNAMOLLM = replace(
    _DYNAMO,
    scale="dynamo",
    shard="dynamo",
    shadow=True,
    clock="profile",
    clock_period_s=5.0,
    clock_floor="voltage",  # for what comes within a period; in no table of the paper least energy is below 1.2 GHz
    route="least_energy",
    engine_priority=True,  # by which emergencies reorder what waits inside engines
    emergencies=True,
)
# V-B: "overheads ... on the critical path": servers start when their load is there, from nothing
_FROM_NOTHING = Tuning(starts=StartsTuning(warm_pool=0, weights_cached=False))
_HALF_SECONDS = Tuning(profile=ProfileTuning(step_mhz=60.0, memory_s=15.0, counts_ttft=False, full_iteration=True))
_BY_TURNS = Tuning(split=SplitTuning(chunked=False))
_THRESHOLD = replace(
    _PLAIN,
    scale="threshold",
    scale_period_s=1800.0,
    shard="threshold",
    shard_period_s=300.0,
    clock="threshold",
    clock_period_s=5.0,
    clock_floor="voltage",
    alpha=1.1,
    clock_ttft_share=0.8,
    clock_tpot_share=0.8,
)

_ROWS = (
    Policy("greenserve", "greenserve", _GREENSERVE, _HALF_SECONDS),
    # FREESH's epochs, with the best mix of TP degrees, MIAD clocks and routing by least energy
    Policy("greenserve_epochs", "freesh", Knobs(clock_floor="voltage")),
    Policy("freesh", "freesh", _FREESH),
    # FREESH 4.1: "without the request classifier nor any of the proposed control knobs"
    Policy(
        "freesh_baseline",
        "freesh",
        replace(
            _FREESH,
            partition=WHOLE,
            frozen=("carbon", "scale"),
            shard="off",
            clock="fixed",
            order="fcfs",
            engine_priority=False,
            preempts_s=0.0,
        ),
    ),
    Policy("min_energy", "freesh", replace(_FREESH, objective="energy")),
    Policy("dynamollm", "dynamo", _DYNAMOLLM),
    # DynamoLLM V-A: one pool, or one for each class, at the highest performance; then one knob each
    Policy("single_pool", "static", replace(_PLAIN, route="round_robin")),
    Policy("multi_pool", "static", _DYNAMO),
    Policy("scale_inst", "dynamo", replace(_DYNAMO, scale="dynamo", hand_down=False, proactive=False), _FROM_NOTHING),
    Policy("scale_shard", "dynamo", replace(_DYNAMO, shard="dynamo")),
    Policy("scale_freq", "dynamo", replace(_DYNAMO, clock="profile", clock_period_s=5.0)),
    Policy(
        "throttllem",
        "throttle",
        replace(
            _THROTTLE,
            scale="throttle",
            scale_period_s=10.0,
            shadow=True,
            clock="throttle",
            clock_floor="voltage",  # about fig. 2e's most efficient one; far below prompts take several times as long
            admission="projection",
        ),
    ),
    Policy("triton", "throttle", _THROTTLE),
    Policy("retail", "throttle", replace(_THROTTLE, clock="retail")),
    Policy(
        "muserve",
        "placement",
        replace(_SJF, clock="slack"),
        Tuning(placement=PlacementTuning(kind="power_aware")),
    ),
    Policy("alpaserve", "placement", _SERVE),
    Policy("alpaserve_sched", "placement", _SJF),
    Policy("alpaserve_scaling", "placement", replace(_SJF, clock="slack")),
    Policy("dynaserve", "split", replace(_PAIRS, split="any", itl_limit_s=None, route="predicted")),
    Policy("pd_coloc", "split", replace(_PAIRS, route="round_robin"), _BY_TURNS),
    Policy("pd_disagg", "split", replace(_PAIRS, split="prompt", route="round_robin"), _BY_TURNS),
    # 36 % against a static top clock: a few levels, the next iteration alone, and answers where no clock need go up
    Policy(
        "voltanallm",
        "greenserve",
        replace(_APART, clock="iteration", clock_floor="voltage", route="least_energy"),
        Tuning(profile=ProfileTuning(step_mhz=405.0), split=SplitTuning(by_rates=True)),
    ),
    # two tiers: counts each five minutes from the last five, clocks by iteration
    Policy(
        "biscale",
        "greenserve",
        replace(
            _APART,
            scale="right_size",
            scale_period_s=300.0,
            shadow=True,
            objective="energy",
            alpha=1.2,
            clock="deadline",
            clock_floor_mhz=800.0,  # below power is not measured
            clock_ttft_share=0.5,
            plan_ttft_share=0.7,
            plan_tpot_share=0.6,
        ),
        Tuning(
            profile=ProfileTuning(step_mhz=60.0),
            right_size=RightSizeTuning(look_s=300.0, hold_s=300.0, replay=False, error_budget=False),
            split=SplitTuning(by_rates=True),
        ),
    ),
    # yardsticks of our own
    Policy("least_loaded", "static", _PLAIN),
    Policy("disaggregated", "static", replace(_PLAIN, split="prompt")),
    Policy("threshold", "threshold", _THRESHOLD),
)
PRESETS: Mapping[str, Policy] = types.MappingProxyType({row.name: row for row in _ROWS})


def choices() -> list[tuple[str, str]]:
    """Returns the policies as a form's choices.

    As a function, since a list in a model asks for a migration each time it grows.
    """
    return [(name, name) for name in PRESETS]


def policy(name: str, overrides: Mapping[str, Any] | None = None) -> Policy:
    """Returns a preset with some knobs, and some of its `tuning`, set otherwise.

    Raises:
        ValueError: An unknown name, knob or field, or a value that it cannot have; the text is `KEY: what is wrong`.
    """
    name = OLD_NAMES.get(name, name)
    if name not in PRESETS:
        raise ValueError(f"unknown policy '{name}'; known are {', '.join(PRESETS)}")
    preset, own = PRESETS[name], overrides or {}
    tuning = changed(preset.tuning, own.get("tuning", {})) if isinstance(own, Mapping) else preset.tuning
    return replace(preset, knobs=with_knobs(preset.knobs, own), tuning=tuning, overrides=dict(own))


def with_knobs(present: Knobs, overrides: Mapping[str, Any]) -> Knobs:
    """Returns the knobs with those of the overrides put over them; `tuning` is none of them.

    Raises:
        ValueError: An unknown knob, a value that it cannot have, or one that contradicts another knob.
    """
    if not isinstance(overrides, Mapping):
        raise ValueError('knobs are an object, like {"clock": "fixed"}')
    known = {item.name: item for item in fields(Knobs)}
    own = {}
    for key, value in overrides.items():
        if key == "tuning":
            continue
        if key not in known:
            raise ValueError(f"unknown knob '{key}'; known are {', '.join(known)}")
        own[key] = checked(Knobs, known[key], value)
    found = replace(present, **own)
    check_together(found)
    return found
