"""The twin: a past period of the live fleet beside the simulation of the same fleet, requests and policy.

What a What-if study says of other policies is worth what this comparison says of the policy that ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from core.simulator.kernel.commands import OFF, Answer, FleetView
from core.simulator.runs.runner import requests_of, run_scenario, warm_up
from core.types import Mode
from pools.models import Instance, Service

from . import scenario_documents, study_drafts
from .fleet_scenario import Draft
from .past_figures import past_figures

STANDING_STEP_S = 5.0  # how often the fleets are compared

Standing = Mapping[str, int]  # instances by "SITE GPU/TPn"


@dataclass(frozen=True, slots=True)
class Side:
    """A live or a simulated run. `standing`: the instances that stood, each `STANDING_STEP_S`."""

    figures: Mapping[str, Any]
    standing: Sequence[Standing]


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of both runs.

    `within`: what they may differ by, of the live one or, where `share`, in itself; None: it is shown and not judged.
    """

    label: str
    unit: str
    live: float | None
    simulated: float | None
    within: float | None = None
    share: bool = False

    @property
    def difference(self) -> float | None:
        """Simulated against live: a ratio less 1, of a share the difference."""
        if self.live is None or self.simulated is None:
            return None
        if self.share:
            return self.simulated - self.live
        return self.simulated / self.live - 1.0 if self.live else None

    @property
    def holds(self) -> bool:
        if self.within is None:
            return True
        return self.difference is not None and abs(self.difference) <= self.within

    def as_json(self) -> dict[str, Any]:
        own = {"label": self.label, "unit": self.unit, "live": self.live, "simulated": self.simulated}
        return {**own, "difference": self.difference, "within": self.within, "holds": self.holds}


@dataclass(frozen=True, slots=True)
class Margins:
    """Says by how much a simulated figure may differ: a share of the live one, of attainment points. `plans` is the
    share of the time in which the same instances are to stand."""

    energy: float = 0.05
    gpu_hours: float = 0.05
    clock: float = 0.05
    latency: float = 0.10
    attainment: float = 0.01
    plans: float = 0.90


# Without loops nothing is left but physics.
STATIC = Margins(energy=0.02)


@dataclass(frozen=True, slots=True)
class Twin:
    """Both runs, and the scenario that the live one was exported as."""

    draft: Draft
    live: Side
    simulated: Side
    margins: Margins = field(default_factory=Margins)

    @property
    def plans_agree(self) -> float | None:
        """The share of the time in which the same instances stood, by site, GPU type and TP degree."""
        pairs = list(zip(self.live.standing, self.simulated.standing, strict=False))
        return sum(a == b for a, b in pairs) / len(pairs) if pairs else None

    @property
    def rows(self) -> list[ComparedFigure]:
        live, simulated, own = self.live.figures, self.simulated.figures, self.margins
        latency = own.latency
        found = [
            _row("requests", "", live, simulated, "requests"),
            _row("energy", "Wh", live, simulated, "energy_wh", within=own.energy),
            *(
                ComparedFigure(f"energy, {kind}", "Wh", _of(live, kind), _of(simulated, kind))
                for kind in ("serving", "idle", "transition", "empty")
            ),
            _row("carbon", "gCO2e", live, simulated, "carbon_g"),
            _row("GPU time, occupied", "h", live, simulated, "gpu_hours", within=own.gpu_hours),
            _row("GPU time, empty", "h", live, simulated, "empty_gpu_hours"),
            _row("mean clock", "MHz", live, simulated, "clock_mhz", within=own.clock),
            _row("SLO attainment", "", live, simulated, "slo_attainment", within=own.attainment, share=True),
        ]
        for key, words in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "E2E")):
            for name in ("p50", "p99"):
                judged = latency if (key, name) in (("ttft_s", "p50"), ("tpot_s", "p50")) else None
                found.append(_row(f"{words} {name}", "s", live[key], simulated[key], name, within=judged))
        agree = self.plans_agree
        return [*found, ComparedFigure("same instances stand", "of the time", 1.0, agree, 1.0 - own.plans, share=True)]

    @property
    def holds(self) -> bool:
        return all(row.holds for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        return {
            "holds": self.holds,
            "rows": [row.as_json() for row in self.rows],
            "live": dict(self.live.figures),
            "simulated": dict(self.simulated.figures),
            "notes": list(self.draft.notes),
        }


def _row(
    label: str,
    unit: str,
    live: Mapping[str, Any],
    simulated: Mapping[str, Any],
    key: str,
    within: float | None = None,
    share: bool = False,
) -> ComparedFigure:
    return ComparedFigure(label, unit, live.get(key), simulated.get(key), within, share)


def _of(figures: Mapping[str, Any], kind: str) -> float:
    """Returns the energy of a kind. The simulator alone has serving by phase."""
    kinds = figures["energy_wh_by"]
    names = ("prefill", "decode", "serving") if kind == "serving" else (kind,)
    return float(sum(kinds.get(name, 0.0) for name in names))


def of(service: Service, start: datetime, end: datetime, now: datetime, user: Any, margins: Margins) -> Twin:
    """Compares [start, end) of a service, which ran one policy throughout, with its simulation. Raises BadStudy."""
    made = study_drafts.draft(
        {"traffic": {"kind": "past", "from": start.isoformat(), "to": end.isoformat(), "service": service.name}},
        study_drafts.FLEET,
        user,
        None,
        now,
    )
    start = datetime.fromisoformat(made.document["start"])
    live = Side(past_figures(start, end, service.name), list(_stood(service, start, end)))
    return Twin(made, live, simulated(made), margins)


def _stood(service: Service, start: datetime, end: datetime) -> Iterator[Standing]:
    """Yields the instances that stood at each step, those that started or drained among them."""
    rows = Instance.objects.filter(pool__service=service, node__isnull=False, created_at__lt=end)
    alive = list(
        rows.exclude(stopped_at__lt=start).values_list("pool__site__name", "gpu_type", "tp", "created_at", "stopped_at")
    )
    at = start
    while at < end:
        there = (row for row in alive if row[3] <= at and (row[4] is None or row[4] > at))
        yield Counter(_name(site, Mode(gpu, tp)) for site, gpu, tp, _, _ in there)
        at += timedelta(seconds=STANDING_STEP_S)


def simulated(made: Draft) -> Side:
    """Runs the scenario under its own policy. Raises what `parse_scenario` and `run_scenario` do."""
    probe = _Probe()
    with scenario_documents.opened(made.document, made.files) as scenario:
        warm_up(scenario)
        run = run_scenario(scenario, requests_of(scenario), probes=(probe,))
    return Side(run.figures, probe.seen)


@dataclass(slots=True)
class _Probe:
    """A control that looks which instances stand."""

    name: str = "probe"
    period_s: float = STANDING_STEP_S
    seen: list[Standing] = field(default_factory=list)

    def step(self, view: FleetView) -> Answer:
        there = (view.instances[slot] for slot in np.flatnonzero(view.state != OFF).tolist())
        self.seen.append(Counter(_name(spec.site, Mode(spec.gpu, spec.tp)) for spec in there))
        return Answer()


def _name(site: str, mode: Mode) -> str:
    return f"{site} {mode.name}"
