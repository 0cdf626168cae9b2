"""Reads carbon epochs (FREESH eq. 1) from JSON: milliseconds, Wh and kWh outside, the core's units inside."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.algorithms.fleet.fleet_problem import FleetProblem, NegativeIntensity, Objective, ObjectiveWeights
from core.types import ClassDemand, Limits, Mode, ModeProfile, PartitionOption, SiteView, Source
from core.units import J_PER_WH, ms_to_s

_FIELDS = (
    *("objective", "weights", "negative_intensity", "alpha", "step_s", "sites", "gpus", "pue", "modes", "partitions"),
    *("power_w", "max_rps", "latency_s", "tpot_ms", "ttft_ms", "limits", "demand_rps"),
    *("intensity_g_per_kwh", "price_usd_per_kwh"),
)


_LIMITS = ("latency_s", "tpot_ms", "ttft_ms")
_REMEDIES = {
    "sites": "a list of site names",
    "gpus": 'the GPUs of each site by type, as in {"loc1": {"A100": 4}}',
    "modes": 'the GPUs that a worker of each mode takes, as in {"mode1": {"A100": 2}}',
    "partitions": 'the classes of each partition, as in {"a": ["SS", "SL"]}',
    "power_w": "a worker's watts by partition, class and mode",
    "max_rps": "a worker's requests a second by partition, class and mode (0: it cannot serve the class)",
    "demand_rps": "requests a second of each step by partition and class",
    "intensity_g_per_kwh": "g/kWh of each step by site",
    "price_usd_per_kwh": "USD/kWh of each step by site",
    "weights": "what a gram (carbon), a Wh (energy) and a USD (cost) count",
}


class ProblemError(ValueError):
    """A problem that cannot be used; the message names the field and what would be right."""


def read_problem(path: Path) -> FleetProblem:
    """Returns a problem from its file. Raises ProblemError, which names the file and the field."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise ProblemError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ProblemError(f"{path}: not a problem: nested too deeply") from None
    except ProblemError as error:
        raise ProblemError(f"{path}: {error}") from None
    except ValueError as error:  # not UTF-8, or not JSON
        raise ProblemError(f"{path}: not JSON: {error}") from None
    try:
        return parse_problem(document)
    except ProblemError as error:
        raise ProblemError(f"{path}: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose fields are there once: of two the reader would silently keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ProblemError(f"{twice}: is there twice in one object; keep one of them")
    return found


def parse_problem(document: object) -> FleetProblem:
    """Returns the problem that a JSON document states. Raises ProblemError.

    Only figures that are needed must be there. A latency or a limit that is missing or null rules nothing out, a mode
    without `max_rps` (missing, null or 0) cannot serve the class, and a site with a null intensity or price in a step
    cannot be chosen by it. Other fields than ours are ignored, but not those that look like one with a slip in it.
    """
    top = _Field("the problem", document)
    for key in top.names():
        if key not in _FIELDS and (near := difflib.get_close_matches(key, _FIELDS, 1, 0.8)):
            raise ProblemError(f"{key}: unknown field; did you mean {near[0]}?")
    objective = Objective(top.choice("objective", [str(item) for item in Objective], Objective.CARBON))
    negative = top.choice("negative_intensity", [str(item) for item in NegativeIntensity], NegativeIntensity.CLAMP)
    steps = _Steps()
    modes = {name: _mode(name, top.at("modes").at(name)) for name in top.at("modes").names()}
    partitions = tuple(_partition(top, name, modes, steps) for name in top.at("partitions").names())
    weights = _weights(top.at("weights")) if objective is Objective.WEIGHTED else None
    by_carbon = objective is Objective.CARBON or (weights is not None and weights.per_gco2e > 0.0)
    by_cost = objective is Objective.COST or (weights is not None and weights.per_usd > 0.0)
    sites = top.at("sites").texts()
    for name in sites:  # how many steps there are is known only when all lists have been seen
        _site(top, name, steps, by_carbon, by_cost)
    return FleetProblem(
        tuple(_site(top, name, steps, by_carbon, by_cost) for name in sites),
        partitions,
        _default(top.get("step_s"), 300.0, above=0.0),
        _default(top.get("alpha"), 1.1, above=0.0),
        objective=objective,
        negative_intensity=NegativeIntensity(negative),
        weights=weights,
    )


@dataclass(frozen=True, slots=True)
class _Field:
    """A value of the document and where it stands."""

    path: str
    value: Any

    def error(self, right: str) -> ProblemError:
        return ProblemError(f"{self.path}: must be {right}, not {json.dumps(self.value)[:80]}")

    def names(self) -> tuple[str, ...]:
        if not isinstance(self.value, dict):
            raise self.error("an object")
        return tuple(self.value)

    def get(self, key: str) -> _Field | None:
        """Returns a field of an object; None when it is missing or null."""
        self.names()
        found = self.value.get(key)
        return None if found is None else _Field(key if self.path == "the problem" else f"{self.path}.{key}", found)

    def at(self, key: str) -> _Field:
        found = self.get(key)
        if found is None:
            raise ProblemError(self._missing(key))
        return found

    def _missing(self, key: str) -> str:
        """Returns what to add, and the names that the object has, since one of them may be the missing one misspelt."""
        path = key if self.path == "the problem" else f"{self.path}.{key}"
        if self.path == "the problem":
            return f"{path}: missing; give {_REMEDIES.get(key, 'it')}"
        has = f", {self.path} has {', '.join(self.names())[:80]}" if self.names() else ""
        return f"{path}: missing; give {_REMEDIES.get(self.path.split('.')[0], 'it')} for {key}{has}"

    def items(self) -> Iterator[_Field]:
        if not isinstance(self.value, list):
            raise self.error("a list")
        return (_Field(f"{self.path}[{number}]", value) for number, value in enumerate(self.value))

    def texts(self) -> tuple[str, ...]:
        """Returns a list of names, each once."""
        found: dict[str, None] = {}
        for item in self.items():
            if not isinstance(item.value, str):
                raise item.error("a name")
            if item.value in found:
                raise ProblemError(f"{item.path}: '{item.value}' is there twice")
            found[item.value] = None
        return tuple(found)

    def choice(self, key: str, known: list[str], default: str) -> str:
        found = self.get(key)
        if found is None:
            return default
        if found.value not in known:
            raise found.error(" or ".join(known))
        return str(found.value)

    def number(self, least: float | None = None, above: float | None = None) -> float:
        value = self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error("a number")
        if least is not None and value < least:
            raise self.error(f"at least {least:g}")
        if above is not None and value <= above:
            raise self.error(f"above {above:g}")
        return float(value)

    def whole(self) -> int:
        if not self.number(least=0.0).is_integer():
            raise self.error("a whole number")
        return int(self.value)


class _Steps:
    """How many steps there are: the first list says it, the others must agree."""

    def __init__(self) -> None:
        self.count: int | None = None
        self._path = ""

    def series(self, field: _Field) -> list[_Field]:
        """Returns one field a step; a lone number holds for all of them."""
        if not isinstance(field.value, list):
            return [field] * (self.count or 1)
        if not field.value:
            raise field.error("a list with a number for each step")
        if self.count is not None and len(field.value) != self.count:
            raise ProblemError(f"{field.path}: has {len(field.value)} steps, but {self._path} has {self.count}")
        if self.count is None:
            self.count, self._path = len(field.value), field.path
        return list(field.items())


def _default(field: _Field | None, default: float, least: float | None = None, above: float | None = None) -> float:
    return default if field is None else field.number(least, above)


def _weights(field: _Field) -> ObjectiveWeights:
    """Reads weights, which are given per gram, per Wh and per USD."""
    carbon, energy, cost = (_default(field.get(key), 0.0, least=0.0) for key in ("carbon", "energy", "cost"))
    if not carbon + energy + cost > 0.0:
        raise field.error("weights of carbon, energy and cost, not all 0")
    return ObjectiveWeights(carbon, energy / J_PER_WH, cost)


def _mode(name: str, field: _Field) -> Mode:
    parts = tuple((gpu, field.at(gpu).whole()) for gpu in field.names())
    parts = tuple((gpu, count) for gpu, count in parts if count)
    if not parts:
        raise field.error("the GPUs that a worker takes, at least one")
    return Mode(*parts[0], parts[1:], name)


def _site(top: _Field, name: str, steps: _Steps, by_carbon: bool, by_cost: bool) -> SiteView:
    gpus, pue = top.at("gpus").at(name), top.get("pue")
    intensity = _feed(top, "intensity_g_per_kwh", name, steps, by_carbon)
    return SiteView(
        name,
        {gpu: gpus.at(gpu).whole() for gpu in gpus.names()},
        _default(None if pue is None else pue.get(name), 1.0, above=0.0),
        intensity or (None,) * (steps.count or 1),
        _feed(top, "price_usd_per_kwh", name, steps, by_cost),
    )


def _feed(top: _Field, key: str, site: str, steps: _Steps, needed: bool) -> tuple[float | None, ...]:
    """Returns a site's figures, one a step; none when they are not there and nothing depends on them."""
    if needed:
        field: _Field | None = top.at(key).at(site)
    else:
        feeds = top.get(key)
        field = None if feeds is None else feeds.get(site)
    if field is None:
        return ()
    return tuple(None if item.value is None else item.number() for item in steps.series(field))


def _partition(top: _Field, name: str, modes: dict[str, Mode], steps: _Steps) -> PartitionOption:
    classes = top.at("partitions").at(name).texts()
    if not classes:
        raise ProblemError(f"partitions.{name}: has no classes")
    demands = [
        ClassDemand(
            request_class,
            tuple(item.number(least=0.0) for item in steps.series(top.at("demand_rps").at(name).at(request_class))),
            _limits(top, name, request_class),
        )
        for request_class in classes
    ]
    profiles = {}
    for request_class in classes:
        rates = top.at("max_rps").at(name).at(request_class)
        for label, mode in modes.items():
            if (rate := _default(rates.get(label), 0.0, least=0.0)) > 0.0:
                profiles[request_class, mode] = ModeProfile(
                    rate,
                    top.at("power_w").at(name).at(request_class).at(label).number(least=0.0),
                    _seconds(_figure(top, "ttft_ms", name, request_class, label)),
                    _seconds(_figure(top, "tpot_ms", name, request_class, label)),
                    _figure(top, "latency_s", name, request_class, label),
                    Source.MEASURED,
                )
    return PartitionOption(name, tuple(demands), profiles)


def _limits(top: _Field, partition: str, request_class: str) -> Limits:
    own = top
    for key in ("limits", partition, request_class):
        if (found := own.get(key)) is None:
            return Limits()
        own = found
    for name in own.names():  # a limit with a slip in its name would be none at all
        if name not in _LIMITS:
            raise ProblemError(f"{own.path}.{name}: unknown limit; known are {', '.join(_LIMITS)}")
    return Limits(
        _seconds(_figure(top, "limits", partition, request_class, "ttft_ms")),
        _seconds(_figure(top, "limits", partition, request_class, "tpot_ms")),
        _figure(top, "limits", partition, request_class, "latency_s"),
    )


def _figure(top: _Field, *keys: str) -> float | None:
    """Returns a number that may be missing, with all that it stands in."""
    field: _Field | None = top
    for key in keys:
        field = None if field is None else field.get(key)
    return None if field is None else field.number(least=0.0)


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else ms_to_s(value_ms)
