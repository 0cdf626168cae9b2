"""The spellings that scenarios of version 0.1 have for knobs and tuning. They are read for one version more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.policy.knobs import USUAL_S
from core.policy.presets import Policy
from core.types import Loop

_STARTS = {"warm_pool": "tuning.starts.warm_pool", "weights_cached": "tuning.starts.weights_cached"}
_RIGHT_SIZE = ("look_s", "burst", "hold_s", "min_saving", "mode_saving", "catch_up_s")
_DYNAMO = ("down_after", "wave", "clocks", "min_saving")
_THRESHOLD = ("kv_high", "kv_low", "busy_high", "busy_low", "clock_step_mhz")
_THROTTLE = ("engines", "max_tokens", "tbt_s", "ips", "retry_s")
_PLACEMENT = ("max_devices", "spread", "group_gpus", "goal", "guide_s")
_SLACK = ("sensitivity", "reserve", "sample_s", "memory_s", "in_flight")
_SPLIT = ("itl_margin", "chunked", "calibrate_s", "gain", "max_probes", "margin_tokens", "tolerance", "candidates")
_LINK = ("first_share", "link_gb_per_s", "latency_s")


def _of(record: str, names: Sequence[str]) -> dict[str, str]:
    return {name: f"tuning.{record}.{name}" for name in names}


# By family: the old key, and where its value stands now.
MOVED: Mapping[str, Mapping[str, str]] = {
    "freesh": {
        **_STARTS,
        **_of("eq1", ("floor_rps", "min_saving", "time_limit_s")),
        "clock_increase": "tuning.miad.increase",
        "clock_decrease_mhz": "tuning.miad.decrease_mhz",
        "margin_s": "tuning.queue.margin_s",
        "routing": "route",
    },
    "threshold": {**_STARTS, **_of("threshold", _THRESHOLD), "floor_rps": "tuning.eq1.floor_rps", "routing": "route"},
    "dynamo": {
        **_STARTS,
        **_of("dynamo", _DYNAMO),
        "routing": "route",
        "emergency": "emergencies",
        "emergency_up_to": "emergencies_up_to",
        "emergency_period_s": "tuning.ladder.period_s",
    },
    "greenserve": {
        **_STARTS,
        **_of("right_size", _RIGHT_SIZE),
        "headroom": "alpha",
        "margin": "plan_tpot_share",
        "clock_margin": "clock_tpot_share",
        "clock_step_mhz": "tuning.profile.step_mhz",
    },
    "throttle": {**_STARTS, **_of("throttle", _THROTTLE), "period_s": "scale_period_s"},
    "placement": {
        **_of("placement", _PLACEMENT),
        **_of("slack", _SLACK),
        "placement": "tuning.placement.kind",
        "clock_step_mhz": "tuning.slack.step_mhz",
        "clock_increase": "tuning.slack.increase",
        "act_s": "clock_period_s",
    },
    "split": {**_of("split", (*_SPLIT, *_LINK)), "routing": "route"},
    "static": {},
}
# Keys that became several, or whose values changed with them; `_SPECIAL` reads them.
REPLACED: Mapping[str, tuple[str, ...]] = {
    "freesh": ("loops", "latency_margin", "step_s"),
    "threshold": ("loops", "latency_margin", "pools"),
    "dynamo": ("loops", "headroom", "margin", "wait_share"),
    "greenserve": ("loops", "wait_share", "shortest_first"),
    "throttle": ("autoscale",),
    "placement": ("scaling",),
    "split": (),
    "static": (),
}
_ROUTES = {"weighted": "weighted_round_robin", "energy": "least_energy"}
_FORMER_TOLERANCE = 0.002  # the default of version 0.1
_SPLITS = {"dynamic": "any", "disaggregated": "prompt", "colocated": "none"}


@dataclass(slots=True)
class _Keys:
    """The keys of a policy that are taken over one by one. `written`: by new name, the key that the file has."""

    preset: Policy
    given: dict[str, Any]
    found: dict[str, Any] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)

    def put(self, old: str, path: str, value: Any) -> None:
        if path in self.given:
            raise ValueError(f"{old}: is called {path} now, which is given too")
        self.written[path] = old
        head, _, rest = path.partition(".")
        if not rest:
            self.found[head] = value
            return
        record, name = rest.split(".")
        self.found.setdefault(head, {}).setdefault(record, {})[name] = value

    def flag(self, key: str) -> bool | None:
        """Takes a key out that is true or false; None: it is not given."""
        value = self.given.pop(key, None)
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{key}: must be true or false, not {value!r}")
        return value

    def loops(self, known: Sequence[str]) -> tuple[str, ...] | None:
        value = self.given.pop("loops", None)
        if value is None:
            return None
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)):
            raise ValueError(f"loops: must be a list of names, not {value!r}")
        for name in names:
            if name not in known:
                raise ValueError(f"loops: unknown '{name}'; known: {', '.join(known)}")
        return tuple(names)

    def number(self, key: str) -> float | None:
        value = self.given.pop(key, None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError(f"{key}: must be a number, not {value!r}")
        return None if value is None else float(value)


def renamed(preset: Policy, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the keys of a policy by today's names, and by today's name the key that was written in its place.

    Raises:
        ValueError: A key that today's names need as several has no value of its kind; or old and new name are given.
    """
    own = {key: value for key, value in given.items() if value is not None or key not in MOVED[preset.family]}
    keys = _Keys(preset, own)
    if read := _SPECIAL.get(preset.family):
        read(keys)
    tuning = keys.given.pop("tuning", None)
    for old, path in MOVED[preset.family].items():
        if old in keys.given:
            value = keys.given.pop(old)
            keys.put(old, path, _ROUTES.get(value, value) if path == "route" and isinstance(value, str) else value)
    if tuning is not None:
        keys.found["tuning"] = merged(keys.found.get("tuning", {}), tuning)
    return {**keys.given, **keys.found}, keys.written


def merged(old: Any, new: Any) -> Any:
    """Returns the fields of tuning with new ones put over them, record by record; what is no tuning, as it is."""
    for given in (old, new):
        if not isinstance(given, Mapping) or not all(isinstance(values, Mapping) for values in given.values()):
            return given
    return {name: {**old.get(name, {}), **new.get(name, {})} for name in (*old, *new)}


def _freesh(keys: _Keys) -> None:
    if keys.given.get("partition", "") is None:
        del keys.given["partition"]
    loops = keys.loops(("carbon", "scale", "shard", "clock"))
    if loops is not None:
        keys.put("loops", "frozen", [name for name in ("carbon", "scale") if name not in loops])
        keys.put("loops", "shard", "mix" if "shard" in loops else "off")
        keys.put("loops", "clock", "miad" if "clock" in loops else "fixed")
    _latency_margin(keys)
    step_s = keys.number("step_s")
    if step_s is not None:
        period_s = float(keys.given.get("carbon_period_s") or USUAL_S[Loop.CARBON])
        if not 0.0 < step_s <= period_s:
            raise ValueError(f"step_s: must be at most carbon_period_s, {period_s:g}")
        keys.put("step_s", "tuning.eq1.steps", max(1, round(period_s / step_s)))


def _latency_margin(keys: _Keys) -> None:
    share = keys.number("latency_margin")
    if share is not None:
        keys.put("latency_margin", "clock_ttft_share", share)
        keys.put("latency_margin", "clock_tpot_share", share)


def _threshold(keys: _Keys) -> None:
    _own_loops(keys, {"scale": "threshold", "shard": "threshold", "clock": "threshold"})
    _latency_margin(keys)
    if (pools := keys.given.pop("pools", None)) is not None:
        if pools not in ("one", "per_class"):
            raise ValueError(f"pools: unknown '{pools}'; known: one, per_class")
        keys.put("pools", "partition", "whole" if pools == "one" else "dynamo")


def _own_loops(keys: _Keys, own: Mapping[str, str]) -> tuple[str, ...] | None:
    """Sets the knob of each loop that a family may have, where `loops` says which run."""
    loops = keys.loops(tuple(own))
    if loops is not None:
        off = {"scale": "static", "shard": "off", "clock": "fixed"}
        for name, value in own.items():
            keys.put("loops", name, value if name in loops else off[name])
    return loops


def _dynamo(keys: _Keys) -> None:
    loops = _own_loops(keys, {"scale": "dynamo", "shard": "dynamo", "clock": "profile"})
    if loops and "clock" in loops and "clock_period_s" not in keys.given and not keys.preset.knobs.clock_period_s:
        keys.put("loops", "clock_period_s", 5.0)
    headroom = keys.number("headroom")
    if headroom is not None:  # beside it, alpha was that of the shard loop; by itself it is today's
        if "alpha" in keys.given:
            keys.put("alpha", "tuning.dynamo.shard_alpha", keys.given.pop("alpha"))
        keys.put("headroom", "alpha", headroom)
    margin, wait_share = keys.number("margin"), keys.number("wait_share")
    knobs = keys.preset.knobs
    if margin is not None:
        keys.put("margin", "plan_tpot_share", margin)
        keys.put("margin", "clock_tpot_share", margin)
    if margin is not None or wait_share is not None:
        share = knobs.plan_ttft_share / knobs.plan_tpot_share if wait_share is None else wait_share
        share *= knobs.plan_tpot_share if margin is None else margin
        for name in ("plan_ttft_share", "clock_ttft_share"):
            keys.put("margin" if wait_share is None else "wait_share", name, share)


def _greenserve(keys: _Keys) -> None:
    _own_loops(keys, {"scale": "right_size", "clock": "deadline"})
    wait_share = keys.number("wait_share")
    if wait_share is not None:
        keys.put("wait_share", "plan_ttft_share", wait_share)
        keys.put("wait_share", "clock_ttft_share", wait_share)
    shortest_first = keys.flag("shortest_first")
    if shortest_first is not None:
        keys.put("shortest_first", "order", "spf" if shortest_first else "fcfs")


def _throttle(keys: _Keys) -> None:
    for key, on, off in (
        ("admission", "projection", "none"),
        ("clock", "retail" if keys.preset.name == "retail" else "throttle", "fixed"),
    ):
        if isinstance(keys.given.get(key), bool):
            keys.found[key] = on if keys.given.pop(key) else off
    autoscale = keys.flag("autoscale")
    if autoscale is None:
        return
    keys.put("autoscale", "scale", "throttle" if autoscale else "static")
    if autoscale and not ({"period_s", "scale_period_s"} & set(keys.given) or keys.preset.knobs.scale_period_s):
        keys.put("autoscale", "scale_period_s", 10.0)


def _placement(keys: _Keys) -> None:
    scaling = keys.flag("scaling")
    if scaling is not None:
        keys.put("scaling", "clock", "slack" if scaling else "fixed")


def _split(keys: _Keys) -> None:
    split = keys.given.get("split")
    if isinstance(split, str) and split in _SPLITS:
        keys.found["split"] = _SPLITS[keys.given.pop("split")]
    if keys.given.get("tolerance") == _FORMER_TOLERANCE:  # it was a difference of times, and is a share of a rate
        del keys.given["tolerance"]


_SPECIAL: Mapping[str, Callable[[_Keys], None]] = {
    "freesh": _freesh,
    "threshold": _threshold,
    "dynamo": _dynamo,
    "greenserve": _greenserve,
    "throttle": _throttle,
    "placement": _placement,
    "split": _split,
}
