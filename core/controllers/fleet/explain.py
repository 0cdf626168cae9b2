"""Words and JSON-able views that the epochs' rationales share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from core.controllers.basis import basis_json
from core.types import ClassDemand, Mode, ModeProfile, Reason, Source

# The least trusted figure decides how far a result can be trusted.
_TRUST = (Source.MEASURED, Source.INTERPOLATED, Source.PUBLISHED, Source.CALIBRATED, Source.MODELLED, Source.DATA_SHEET)


def least_trusted(sources: Iterable[Source]) -> Source:
    """Returns the weakest of the sources; modelled when there are none."""
    return max(sources, key=_TRUST.index, default=Source.MODELLED)


def left_out(name: str, limits: str) -> str:
    """Returns a sentence that says which limits a class is planned without, since no mode keeps them."""
    return f"{name}: no mode keeps its limits ({limits}), planned without them."


def limits_text(limits_s: Mapping[str, float]) -> str:
    """Returns `E2E of 6 s and TTFT of 0.1 s`, given limits in s by their names."""
    return " and ".join(f"{name.upper()} of {limit_s:g} s" for name, limit_s in limits_s.items())


def workers_text(workers: Mapping[Mode, int]) -> str:
    """Returns `1 x A100-80GB/TP8 + 2 x A100-80GB/TP4`, or `nothing`."""
    return " + ".join(f"{count} x {mode.name}" for mode, count in sorted(workers.items()) if count) or "nothing"


def workers_json(workers: Mapping[Mode, int]) -> dict[str, int]:
    """Returns the workers by name of their mode; modes without any are left out."""
    return {mode.name: count for mode, count in sorted(workers.items()) if count}


def gpus_of(workers: Mapping[Mode, int]) -> dict[str, int]:
    """Counts by type the GPUs that the workers have."""
    gpus: dict[str, int] = {}
    for mode, count in workers.items():
        for gpu, each in mode.gpus.items() if count else ():
            gpus[gpu] = gpus.get(gpu, 0) + count * each
    return gpus


def capacity_rps(workers: Mapping[Mode, int], profiles: Mapping[Mode, ModeProfile]) -> float:
    """Returns the rate that the workers carry, in requests/s; a mode without a profile carries nothing."""
    return sum(count * profiles[mode].max_rps for mode, count in workers.items() if mode in profiles)


def profile_json(profile: ModeProfile) -> dict[str, Any]:
    """Returns a profile's rate (requests/s), power (W), latencies (s) and source as JSON, and when it was measured."""
    return {
        "max_rps": profile.max_rps,
        "power_w": profile.power_w,
        "ttft_s": profile.ttft_s,
        "tpot_s": profile.tpot_s,
        "e2e_s": profile.e2e_s,
        **basis_json(profile),
    }


def demand_json(demand: ClassDemand) -> dict[str, Any]:
    """Returns a class's rates (requests/s), mean tokens and limits (s) as JSON."""
    return {
        "demand_rps": list(demand.demand_rps),
        "mean_prompt_tokens": demand.mean_prompt_tokens,
        "mean_output_tokens": demand.mean_output_tokens,
        "limits": {
            "ttft_s": demand.limits.ttft_s,
            "tpot_s": demand.limits.tpot_s,
            "e2e_s": demand.limits.e2e_s,
        },
    }


_SEVERITY = (
    Reason.NO_CHANGE,
    Reason.NOT_WORTH_IT,
    Reason.OPTIMAL,
    Reason.FEASIBLE,
    Reason.HEURISTIC,
    Reason.NO_DATA,
    Reason.GRACE,
    Reason.SLACK,
    Reason.CONGESTED,
    Reason.AT_LIMIT,
    Reason.INFEASIBLE,
)


def gravest(reasons: Iterable[Reason]) -> Reason:
    """Returns the reason that a person should hear of first; no change when there are none."""
    return max(reasons, key=_SEVERITY.index, default=Reason.NO_CHANGE)
