"""Each policy on the recorded traffic, in the simulator: the fleet as it is, and what GreenServe would have used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from core.engine.engine_model import UnknownConfiguration, engine_model
from core.engine.engine_params import GPUS, MODELS, knows_model, split_fault
from core.observations.limits import lacks_pace
from core.policy.presets import PRESETS
from core.simulator.lab.promise import KEEPS, MOST_REQUESTS, POLICIES, YARDSTICK
from core.types import Limits

from .observation import PolicySaving, Savings
from .traffic import ModelTraffic

BASELINE = YARDSTICK  # the fleet as it is: all engines, by turns, at their top clocks
SITE = "observed"
LEAST_REQUESTS = 30.0
_ENGINES = {"vLLM": "vllm-v1", "SGLang": "vllm-v1", "TensorRT-LLM": "trtllm"}
_STAND_IN = "vllm-v1"
_LATE = 0.05  # of its time by which a run may end after the baseline without a word
_TPS = (1, 2, 4, 8)


class NoSavings(Exception):
    """The simulator cannot stand in for this fleet; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class ObservedFleet:
    """The engines' GPUs, as far as they are known. `models`: what the engine model calls each model of the pages.

    `gpus` are those with an engine, 0: unknown. `site`: PUE, carbon and prices, as a scenario has them.
    """

    gpu: str | None
    gpus: int
    gpus_per_node: int
    tp: int | None
    models: Mapping[str, str]
    site: Mapping[str, Any]

    def degree(self, instances: int) -> int | None:
        """Returns the TP degree of engines: as given, else GPUs by engine where that divides evenly; None: unknown."""
        if self.tp is not None:
            return self.tp
        return self.gpus // instances if instances and self.gpus and self.gpus % instances == 0 else None


def scenario_of(
    traffic: Sequence[ModelTraffic],
    fleet: ObservedFleet,
    objectives: Mapping[str, float],
    seed: int,
    start: datetime,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns a scenario of the fleet with its recorded traffic, and what is to be said of it.

    Args:
        objectives: Seconds by `ttft_s`, `tpot_s` and `e2e_s`.

    Raises:
        NoSavings: Something that the simulator must know is not known.
    """
    served = [own for own in traffic if own.requests > 0.0]
    requests = sum(own.requests for own in served)
    if requests < LEAST_REQUESTS:
        raise NoSavings(
            f"{requests:.0f} requests ended, too few to simulate: observe for longer (--minutes), or ask a Prometheus"
        )
    if fleet.gpu is None or fleet.gpu not in GPUS:
        named = "the engines' GPU type is not known" if fleet.gpu is None else f"--gpu: unknown '{fleet.gpu}'"
        raise NoSavings(f"{named}: give --gpu TYPE, one of {', '.join(GPUS)}")
    instances = sum(own.instances for own in served)
    tp = fleet.degree(instances)
    if tp is None:
        raise NoSavings(
            f"the GPUs of an engine are not known: {fleet.gpus or 'no'} GPUs with an engine on them were seen, and "
            f"{instances} engines; give --tp"
        )
    groups, services, notes = [], {}, []
    for n, own in enumerate(served):
        name = f"model-{n}"  # models' own names have characters that scenarios' names may not have
        group, said = _group(name, own, fleet, tp)
        groups.append(group)
        notes += said
        services[name] = {"model": group["model"], "workload": own.workload()}
    used = instances * tp
    if fleet.gpus and fleet.gpus != used:
        notes.append(
            f"{fleet.gpus} GPUs with an engine were metered, and {used} simulated: name the pages of all engines"
        )
    return {
        "name": "observed",
        "seed": seed,
        "start": start.isoformat(),
        "policy": BASELINE,
        "fleet": groups,
        "services": services,
        "slo": dict(objectives),
        "sites": {
            SITE: {
                **fleet.site,
                "gpus": {fleet.gpu: used},
                "gpus_per_node": max(tp, min(fleet.gpus_per_node, used)),
                "empty_gpus_powered": True,
            }
        },
        "declared": "requests",
        "overload": "allow",
    }, tuple(dict.fromkeys(notes))


def _group(name: str, own: ModelTraffic, fleet: ObservedFleet, tp: int) -> tuple[dict[str, Any], list[str]]:
    """Returns the group of a model's engines, and what is to be said of it. Raises NoSavings."""
    model, gpu = fleet.models.get(own.model, own.model), fleet.gpu or ""
    if not knows_model(model):
        raise NoSavings(
            f"the engine model does not know the model '{own.model}': give --model '{own.model}=NAME' with one of "
            f"{', '.join(MODELS)}, a folder that has its config.json, or owner/name of the Hugging Face hub"
        )
    if fault := split_fault(model, gpu, tp):
        raise NoSavings(f"--tp {tp}: {fault}")
    if own.lengths is None:
        raise NoSavings(f"{own.model}: {'; '.join(own.notes)}")
    first, *others = own.engines
    engine, notes = _ENGINES[first], [f"{own.model}: {note}" for note in own.notes]
    if not _fits(model, gpu, tp, engine) and engine != _STAND_IN:
        engine = _STAND_IN
    if first != "vLLM" and engine == _STAND_IN:
        notes.append(f"the engine model has no parameters of {first} on {gpu}: those of vLLM stand in")
    if others:
        notes.append(f"{own.model}: engines of {', '.join(others)} are simulated as those of {first}")
    if not _fits(model, gpu, tp, engine):
        raise NoSavings(f"{model} has no room on {tp} x {gpu}: check --model, --gpu and --tp")
    most = max(tp, fleet.gpus_per_node)
    choices = [n for n in _TPS if n <= most and not split_fault(model, gpu, n) and _fits(model, gpu, n, engine)]
    return {
        "name": name,
        "count": own.instances,
        "model": model,
        "gpu": gpu,
        "tp": tp,
        "engine": engine,
        "site": SITE,
        "services": [name],
        "tp_choices": sorted({tp, *choices}),
    }, notes


def _fits(model: str, gpu: str, tp: int, engine: str) -> bool:
    try:
        return engine_model(model, gpu, tp, engine).fits
    except UnknownConfiguration:
        return False


def policies_for(objectives: Mapping[str, float], requests: float) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns the policies to run, the baseline first, and why the others are left out."""
    limits = Limits(objectives.get("ttft_s"), objectives.get("tpot_s"), objectives.get("e2e_s"))
    left_out = {}
    for name in POLICIES:
        own, most = PRESETS[name], MOST_REQUESTS.get(name)
        if most is not None and requests > most:
            left_out[name] = f"not run on more than {most:,} requests, which takes it long"
        elif words := lacks_pace(own.knobs.clock, own.knobs.admission, own.tuning.throttle.tbt_s, [limits]):
            left_out[name] = f"not run: {words}"
    return tuple(name for name in POLICIES if name not in left_out), left_out


def savings_of(
    runs: Mapping[str, Mapping[str, Any]],
    left_out: Mapping[str, str],
    metered_wh: float | None,
    notes: Sequence[str],
) -> Savings:
    """Compares the policies' figures with those of the baseline.

    Args:
        runs: Figures of runs by policy.
        left_out: Why others have none.
        metered_wh: What meters say of the engines' GPUs for the same time.
    """
    baseline = runs.get(BASELINE)
    if baseline is None:
        why = left_out.get(BASELINE, "it was stopped before it ended")
        return Savings(f"the fleet as it is could not be simulated: {why}", left_out=dict(left_out))
    found = [_saving(name, own, baseline) for name, own in runs.items() if name != BASELINE]
    late_s = max(own["simulated_s"] for own in runs.values()) - baseline["simulated_s"]
    if late_s > _LATE * baseline["simulated_s"]:
        notes = (
            *notes,
            f"runs end up to {late_s:.0f} s after the baseline's, and use energy until then: observe longer",
        )
    return Savings(
        baseline_wh=baseline["energy_wh"],
        metered_wh=metered_wh,
        requests=baseline["requests"],
        seed=baseline["seed"],
        policies=tuple(sorted(found, key=lambda own: (not own.keeps_objectives, own.energy_wh))),
        left_out=dict(left_out),
        notes=tuple(notes),
    )


def _saving(name: str, own: Mapping[str, Any], baseline: Mapping[str, Any]) -> PolicySaving:
    in_time, in_time_before = own["slo_attainment"], baseline["slo_attainment"]
    emitted, emitted_before = own["carbon_g"], baseline["carbon_g"]
    return PolicySaving(
        policy=name,
        energy_wh=own["energy_wh"],
        energy_saved=1.0 - own["energy_wh"] / baseline["energy_wh"],
        carbon_g=emitted,
        carbon_saved=1.0 - emitted / emitted_before if emitted is not None and emitted_before else None,
        gpu_hours=own["gpu_hours"],
        gpu_hours_saved=1.0 - own["gpu_hours"] / baseline["gpu_hours"],
        slo_attainment=in_time,
        baseline_attainment=in_time_before,
        keeps_objectives=in_time is None or in_time >= min(KEEPS, in_time_before),
    )
