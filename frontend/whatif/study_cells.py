"""Studies and runs as pages show them: words, time left, cells of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils import timezone

from core.simulator.lab.comparison import Compared, sentences
from core.simulator.lab.experiment import Experiment
from frontend import formats
from pools.models import JobState
from scheduler.models import RunState, Study, StudyRun
from scheduler.whatif import comparing
from scheduler.whatif.comparing import Figure

from .plots import Shown

OPEN = (JobState.QUEUED, JobState.RUNNING)
DOTS = {"done": "fresh", "running": "starting", "queued": "waiting", "cancelled": "over", "failed": "failed"}
COLUMNS = 7  # of the comparison that the page shows; all are in its downloads, and on each run's page
MORE = (  # what a run's page has beside the comparison
    Figure("requests", "Requests", "", ("requests",), ""),
    Figure("finished", "Finished", "", ("finished",), ""),
    Figure("simulated_s", "Simulated time", "s", ("simulated_s",), ""),
    Figure("mean_power_w", "Mean power", "W", ("mean_power_w",), ""),
    Figure("violation_rate", "Violations (E2E beyond 5 x alone)", "share", ("violation_rate",)),
    Figure("preemptions", "Preemptions", "", ("preemptions",), ""),
    Figure("retries", "Retries", "", ("retries",), ""),
    Figure("carbon_missing_wh", "Energy without an intensity", "Wh", ("carbon_missing_wh",), ""),
    Figure("price_missing_wh", "Energy without a price", "Wh", ("price_missing_wh",), ""),
    Figure("wall_s", "Computed in", "s", ("wall_s",), ""),
)


def row(study: Study) -> dict[str, Any]:
    """Returns a study as the list shows it."""
    job = study.job
    runs = list(study.runs.all())
    return {
        "study": study,
        "state": job.state,
        "dot": DOTS[job.state],
        "progress": job.progress,
        "open": job.state in OPEN,
        "runs": len(runs),
        "labels": ", ".join(run.label for run in runs[:4]) + (" ..." if len(runs) > 4 else ""),
    }


def shown(study: Study, runs: Sequence[StudyRun]) -> list[Shown]:
    """Returns the runs that are done, as figures of charts take them."""
    return [
        Shown(run.index, run.label, run.figures, run.series or {}, reverse("whatif-run", args=(study.pk, run.index)))
        for run in runs
        if run.state == RunState.DONE and run.figures is not None
    ]


def run_rows(study: Study, runs: Sequence[StudyRun]) -> list[dict[str, Any]]:
    """Returns all runs as the table has them: their states, and the figures of those that are done."""
    now = timezone.now()
    compared = {found.index: found for found in comparing.compared(triples(runs))}
    rows = []
    for run in runs:
        own = compared.get(run.index)
        state = run.state if study.job.state in OPEN or run.state not in OPEN else study.job.state
        rows.append(
            {
                "run": run,
                "state": state,
                "dot": DOTS[state],
                "verdict": comparing.verdict(run.figures, study.target) if own else None,
                "left": _left_s(run, now) if state == "running" else None,
                "cells": [
                    cell(figure, value, ratio, study.currency, first=own.index == min(compared))
                    for figure, value, ratio in zip(comparing.FIGURES, own.values, own.ratios, strict=True)
                ][:COLUMNS]
                if own
                else [],
            }
        )
    return rows


def listed(experiment: Experiment | None, runs: Sequence[StudyRun]) -> list[StudyRun]:
    """Returns the runs of an experiment's table and picture, and all that run or failed; else all runs."""
    if experiment is None or not experiment.listed:
        return list(runs)
    telling = (RunState.RUNNING, RunState.FAILED)
    return [run for run in runs if run.label in experiment.listed or run.state in telling]


def published(found: Sequence[Compared]) -> dict[str, Any]:
    """Writes published beside simulated figures in words, with a sentence for each that differs."""
    rows = [(own.row.label, own.row.place, *own.words(formats.UNKNOWN, "\u00a0")) for own in found]
    return {"rows": rows, "reasons": [(", ".join(labels), why) for labels, why in sentences(found)]}


def triples(runs: Sequence[StudyRun]) -> list[tuple[int, str, dict[str, Any]]]:
    return [(run.index, run.label, run.figures) for run in runs if run.figures is not None]


def cell(figure: Figure, value: float | None, ratio: float | None, currency: str, first: bool) -> dict[str, Any]:
    """Writes a value in words, with its ratio to the first run's and whether that is better."""
    tone = ""
    if ratio is not None and not first and figure.better and abs(ratio - 1.0) >= 0.005:
        tone = "good" if (ratio < 1.0) == (figure.better == "less") else "bad"
    return {
        "label": figure.label,
        "text": text(figure, value, currency),
        "value": value,
        "ratio": None if ratio is None or first else f"{ratio:.2f}\u00a0x",
        "tone": tone,
    }


def text(figure: Figure, value: float | None, currency: str) -> str:
    if value is None:
        return formats.UNKNOWN
    if figure.unit == "share":
        return formats.percent(value, 2)
    if figure.unit == "s":
        return formats.seconds(value)
    if figure.unit in ("Wh", "W", "gCO₂e"):
        return formats.si(value, figure.unit)
    unit = comparing.unit_of(figure, currency)
    number = f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e9 else f"{value:,.4g}"
    return f"{number}\u00a0{unit}".rstrip("\u00a0") if unit != "requests" else number


def figures_of(run: StudyRun, currency: str) -> list[tuple[str, str]]:
    """Returns label and value of everything that a run's page lists."""
    found = [(f.label, text(f, f.of(run.figures), currency)) for f in (*comparing.FIGURES, *MORE)]
    kinds = (run.figures or {}).get("energy_wh_by") or {}
    return found + [(f"Energy, {kind}", formats.si(value, "Wh")) for kind, value in kinds.items()]


def attainments(run: StudyRun) -> list[tuple[str, list[tuple[str, str]]]]:
    """By class, each objective's share of requests that kept it."""
    names = {"ttft": "TTFT", "tpot_mean": "TPOT", "itl_p99": "ITL p99", "e2e": "E2E"}
    found = (run.figures or {}).get("slo_attainment_by") or {}
    return [
        (name, [(names.get(kind, kind), formats.percent(share, 2)) for kind, share in own.items()])
        for name, own in found.items()
        if own
    ]


def decisions(run: StudyRun) -> list[tuple[str, str]]:
    """Counts the decisions of each loop by reason."""
    figures = run.figures or {}
    counts: dict[str, dict[str, int]] = {loop: dict(own) for loop, own in (figures.get("decisions") or {}).items()}
    for loop, holds in (figures.get("holds") or {}).items():
        if holds:
            counts.setdefault(loop, {}).setdefault("no_change", holds)
    return [(loop, ", ".join(f"{formats.words(r)} {n:,}" for r, n in own.items())) for loop, own in counts.items()]


def _left_s(run: StudyRun, now: datetime) -> float | None:
    """Estimates the seconds left at the speed so far; None: not known."""
    if not run.progress or run.started_at is None:
        return None
    return (now - run.started_at).total_seconds() * (1.0 - run.progress) / run.progress
