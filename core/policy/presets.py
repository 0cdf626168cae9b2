"""Policies of the live stack: knobs, and by name the settings that make it the system of a paper, or its baseline.

Names are those of the simulator's policies (`core.simulator.policies.policy_registry`). A service has a preset and
overrides; every loop runs the step that its knob names. Papers: FREESH (arXiv 2511.00807), DynamoLLM (HPCA 2025),
throttLL'eM (HPCA 2025), mu-Serve (USENIX ATC 2024), DynaServe.

Two partitions are known without an operator's doing: `whole`, one class of everything, for those who keep one pool, and
`dynamo`, the classes of DynamoLLM's table IV. The others are FREESH's, or an operator's own.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from core.types import Loop

WHOLE, DYNAMO = "whole", "dynamo"
DEFAULT = "greenserve"


def _knob(
    default: Any, doc: str, choices: tuple[str, ...] = (), *, least: float | None = None, above: float | None = None
) -> Any:
    return field(default=default, metadata={"doc": doc, "choices": choices, "least": least, "above": above})


@dataclass(frozen=True, slots=True)
class Knobs:
    """Everything that a policy may set. `documented` has the words beside each knob. None: from settings."""

    carbon: str = _knob(
        "freesh",
        "freesh: partition, sites and GPUs of each pool by FREESH's eq. 1; off: one partition, and the GPUs in whole "
        "units to the classes that lack capacity most, as DynamoLLM's MultiPool is provisioned",
        ("off", "freesh"),
    )
    objective: str = _knob("carbon", "what eq. 1 minimises; FREESH's MinEnergy: energy", ("carbon", "energy", "cost"))
    partition: str = _knob(
        "", "how requests are cut into classes; empty: the carbon loop chooses among the service's (FREESH knob 2)"
    )
    class_limits: bool = _knob(
        False, "plans keep each class's own thresholds beside the service's SLO (DynamoLLM IV-B: the strictest present)"
    )
    fill: str = _knob(
        "all",
        "without a carbon loop: all GPUs run instances (DynamoLLM V-A), or as many as the load needs, which leaves "
        "room for shadows (throttLL'eM runs one engine)",
        ("all", "enough"),
    )
    tp: int = _knob(8, "largest TP degree of an instance; DynamoLLM's baselines TP8, throttLL'eM's engine TP4", least=1)
    alpha: float | None = _knob(None, "head-room of plans over the demand (FREESH eq. 1b)", least=1.0)

    scale: str = _knob(
        "fleet",
        "static: the plan's instances; fleet: FREESH's program in each budget; dynamo: by forecast (DynamoLLM IV-B); "
        "throttle: an engine's size by its load (throttLL'eM IV-D); placement: models to groups of GPUs (mu-Serve "
        "3.2); right_size: sites, counts and TP degrees of each class at once, each few seconds (GreenServe)",
        ("static", "fleet", "dynamo", "throttle", "placement", "right_size"),
    )
    scale_period_s: float | None = _knob(None, "throttLL'eM's autoscaler and right_size: 10 s", least=1.0)
    changes_per_hour: int | None = _knob(
        None, "of right_size: most starts and stops of a site in any hour; none: as many as pay", least=1
    )
    hand_down: bool = _knob(True, "DynamoLLM IV-B: one instance fewer a class, the rest to the next larger class")
    proactive: bool = _knob(True, "DynamoLLM IV-C: instances start a cold start ahead of the epoch that needs them")
    shard: str = _knob(
        "mix",
        "mix: the best TP mix of a pool at once; dynamo: DynamoLLM IV-B, server by server, if it pays off after what "
        "the overhead table says of the change; off: TP stays",
        ("off", "mix", "dynamo"),
    )
    shard_period_s: float | None = _knob(None, "DynamoLLM: 5 min", least=1.0)
    shadow: bool = _knob(
        False, "a new instance warms up beside the one that it replaces, which then drains (throttLL'eM IV-D)"
    )

    clock: str = _knob(
        "miad",
        "fixed: top; miad, primal_dual: FREESH eq. 5 and 4; profile: DynamoLLM IV-B; slack: mu-Serve Alg. 3; throttle: "
        "throttLL'eM IV-E; retail: its baseline (V-F3)",
        ("fixed", "miad", "primal_dual", "profile", "slack", "throttle", "retail"),
    )
    clock_period_s: float | None = _knob(None, "FREESH 1 s, DynamoLLM 5 s, mu-Serve 1 s", above=0.0)
    itl_limit_s: float | None = _knob(
        None, "engines compose batches that keep this gap between tokens (DynaServe 4.2: 100 ms)", above=0.0
    )
    max_num_seqs: int | None = _knob(None, "requests that an engine runs at once; none: vLLM's own 256", least=1)

    route: str = _knob(
        "least_energy",
        "FREESH: weighted_round_robin; DynamoLLM: least_energy; throttLL'eM: least_loaded",
        ("least_energy", "least_carbon", "least_loaded", "weighted_round_robin"),
    )
    by_share: bool = _knob(False, "sites get the carbon plan's shares of each class (FREESH)")
    order: str = _knob(
        "fcfs",
        "of waiting requests; FREESH: llf, DynamoLLM: edf, mu-Serve: sjf with aging",
        ("fcfs", "sjf", "srtf", "edf", "llf"),
    )
    aging_tokens_per_s: float = _knob(20.0, "how fast waiting makes a job shorter (mu-Serve 3.3)", least=0.0)
    engine_priority: bool = _knob(False, "the order holds inside engines too, by vLLM's priority (FREESH's LLF)")
    engine_queue: int = _knob(32, "requests that may wait inside one engine", least=1)
    tenant_weights: dict[str, float] | None = field(
        default=None,
        metadata={"doc": "fair shares of tokens by tenant", "choices": (), "least": None, "above": 0.0},
    )
    max_queued_requests: int = _knob(2000, "requests of a class that may wait at the gateway", least=1)
    max_queued_tokens: int = _knob(20_000_000, "tokens of a class that may wait at the gateway", least=1)
    max_wait_s: float = _knob(120.0, "longest wait at the gateway", above=0.0)
    admission: str = _knob(
        "none", "projection: KV, TBT and E2E are projected first (throttLL'eM IV-C2)", ("none", "projection")
    )
    predictor_error: float = _knob(0.3, "share that predicted lengths are raised by (throttLL'eM)", least=0.0)
    emergencies: bool = _knob(False, "DynamoLLM IV-D: reorder, top clock, re-steer, squash")
    split: str = _knob(
        "none", "prompt: prefill and decode apart; any: at any token (DynaServe 4.1)", ("none", "prompt", "any")
    )

    def period_s(self, loop: Loop, default_s: float) -> float:
        """Returns the period, in s, at which a loop of this policy runs."""
        own = {Loop.SCALE: self.scale_period_s, Loop.SHARD: self.shard_period_s, Loop.CLOCK: self.clock_period_s}
        return own.get(loop) or default_s

    def has_no_choice(self, loop: Loop) -> bool:
        """Says whether a loop has nothing to decide: what it would decide on stays as it was set up."""
        still = {
            Loop.CARBON: self.carbon == "off",
            Loop.SCALE: self.scale in ("static", "placement"),
            Loop.SHARD: self.shard == "off",
            Loop.CLOCK: self.clock == "fixed",
        }
        return still[loop]


# What no paper but FREESH has: a carbon loop, and more than one kind of GPU to choose from.
_PLAIN = Knobs(
    carbon="off", partition=WHOLE, scale="static", shard="off", clock="fixed", route="least_loaded", order="fcfs"
)
_FREESH = Knobs(route="weighted_round_robin", by_share=True, order="llf", engine_priority=True)
_MULTI_POOL = replace(_PLAIN, partition=DYNAMO, class_limits=True)
_THROTTLE = replace(_PLAIN, fill="enough", tp=4)
_SERVE = replace(_PLAIN, scale="placement")
_PAIRS = replace(_PLAIN, tp=4)  # DynaServe's two groups need several instances at a site

PRESETS: Mapping[str, Knobs] = types.MappingProxyType(
    {
        DEFAULT: Knobs(),
        "right_size": replace(
            _PLAIN,
            scale="right_size",
            scale_period_s=10.0,
            shadow=True,
            clock="profile",
            clock_period_s=1.0,
            route="least_loaded",
            order="sjf",
        ),
        "freesh": _FREESH,
        # FREESH 4.1: "without the request classifier nor any of the proposed control knobs"
        "freesh_baseline": replace(_PLAIN, route="weighted_round_robin"),
        "min_energy": replace(_FREESH, objective="energy"),
        "dynamollm": replace(
            _MULTI_POOL,
            scale="dynamo",
            shard="dynamo",
            shadow=True,
            clock="profile",
            clock_period_s=5.0,
            route="least_energy",
            order="edf",
            emergencies=True,
        ),
        # DynamoLLM V-A: one pool, or one for each class, at the highest performance; then one knob each
        "single_pool": _PLAIN,
        "multi_pool": _MULTI_POOL,
        "scale_inst": replace(_MULTI_POOL, scale="dynamo", hand_down=False, proactive=False),
        "scale_shard": replace(_MULTI_POOL, shard="dynamo"),
        "scale_freq": replace(_MULTI_POOL, clock="profile", clock_period_s=5.0),
        "throttllem": replace(
            _THROTTLE, scale="throttle", scale_period_s=10.0, shadow=True, clock="throttle", admission="projection"
        ),
        "triton": _THROTTLE,
        "retail": replace(_THROTTLE, clock="retail"),
        "muserve": replace(_SERVE, clock="slack", order="sjf"),
        "alpaserve": _SERVE,
        "alpaserve_sched": replace(_SERVE, order="sjf"),
        "alpaserve_scaling": replace(_SERVE, order="sjf", clock="slack"),
        "dynaserve": replace(_PAIRS, split="any", itl_limit_s=0.1),
        "pd_coloc": _PAIRS,
        "pd_disagg": replace(_PAIRS, split="prompt"),
    }
)


def choices() -> list[tuple[str, str]]:
    """Returns the presets as a form's choices. As a function, since a list in a model asks for a migration each time it
    grows."""
    return [(name, name) for name in PRESETS]


def knobs(name: str, overrides: Mapping[str, Any] | None = None) -> Knobs:
    """Returns a preset with some knobs set otherwise.

    Raises:
        ValueError: An unknown name or knob, or a value that it cannot have; the text names it and what would do.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown policy '{name}'; known are {', '.join(PRESETS)}")
    if not isinstance(overrides or {}, Mapping):
        raise ValueError('knobs are an object, like {"clock": "fixed"}')
    own = dict(overrides or {})
    known = {item.name: item for item in fields(Knobs)}
    for key, value in own.items():
        if key not in known:
            raise ValueError(f"unknown knob '{key}'; known are {', '.join(known)}")
        own[key] = _checked(key, value, known[key].metadata)
    found = replace(PRESETS[name], **own)
    _check_together(found)
    return found


def documented() -> dict[str, str]:
    """Returns what each knob is for, with its choices."""
    found = {}
    for item in fields(Knobs):
        choices = " | ".join(item.metadata["choices"])
        found[item.name] = f"{choices}. {item.metadata['doc']}" if choices else item.metadata["doc"]
    return found


def parse(key: str, text: str) -> Any:
    """Returns the value that a text means for a knob, as on a command line; `none` for what settings have.

    Raises:
        ValueError: An unknown knob, or no value of its kind.
    """
    kinds = _KINDS.get(key)
    if kinds is None:
        raise ValueError(f"unknown knob '{key}'; known are {', '.join(_KINDS)}")
    if types.NoneType in kinds and text.lower() in ("none", "null", ""):
        return None
    if str in kinds:
        return text
    if bool in kinds:
        return {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}.get(
            text.lower(), text
        )
    if dict in kinds:
        return _weights(key, text)
    try:
        return int(text) if int in kinds else float(text)
    except ValueError:
        raise ValueError(f"{key} is a number, not '{text}'") from None


def _weights(key: str, text: str) -> dict[str, float]:
    """Reads weights such as `acme:2,birch:1`."""
    try:
        return {name.strip(): float(weight) for name, weight in (part.rsplit(":", 1) for part in text.split(","))}
    except ValueError:
        raise ValueError(f"{key} is written like acme:2,birch:1, not '{text}'") from None


def _kinds_of(hint: Any) -> tuple[type, ...]:
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return tuple(typing.get_origin(part) or part for part in parts)


_KINDS = {name: _kinds_of(hint) for name, hint in typing.get_type_hints(Knobs).items()}
_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", dict: "an object"}


def _checked(key: str, value: Any, rules: Mapping[str, Any]) -> Any:
    kinds = _KINDS[key]
    if value is None and types.NoneType in kinds:
        return None
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) not in kinds:
        words = " or ".join([_WORDS[kind] for kind in kinds if kind in _WORDS] + ["null"] * (types.NoneType in kinds))
        raise ValueError(f"{key} is {words}, not {value!r}")
    if rules["choices"] and value not in rules["choices"]:
        raise ValueError(f"{key} is one of {', '.join(rules['choices'])}, not '{value}'")
    if isinstance(value, dict):
        for name, weight in value.items():
            if isinstance(weight, bool) or not isinstance(weight, (int, float)):
                raise ValueError(f"{key} of {name} is a number, not {weight!r}")
            _check_range(f"{key} of {name}", float(weight), rules)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_range(key, value, rules)
    return value


def _check_range(key: str, value: float, rules: Mapping[str, Any]) -> None:
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{key} is a finite number, not {value}")
    if rules["least"] is not None and value < rules["least"]:
        raise ValueError(f"{key} is at least {rules['least']:g}, not {value:g}")
    if rules["above"] is not None and value <= rules["above"]:
        raise ValueError(f"{key} is above {rules['above']:g}, not {value:g}")


def _check_together(found: Knobs) -> None:
    """Refuses knobs that contradict each other."""
    if found.carbon == "off" and not found.partition:
        raise ValueError(f"carbon=off keeps one partition: name it, for example partition={WHOLE}")
    if found.carbon == "freesh" and found.scale in ("dynamo", "throttle", "placement", "right_size"):
        raise ValueError(f"scale={found.scale} shares out GPUs by itself: it needs carbon=off and a partition")
    if found.scale in ("throttle", "right_size") and found.shard != "off":
        raise ValueError(f"scale={found.scale} sets TP degrees by itself: it needs shard=off")
    if found.shard == "dynamo" and found.carbon != "off":
        raise ValueError("shard=dynamo changes whole servers, as carbon=off gives them: set carbon=off and a partition")
