"""A laboratory of two experiments that take a moment to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.simulator import shipped_scenarios
from core.simulator.lab import experiments
from core.simulator.lab.decomposition import energy_by_kind
from core.simulator.lab.experiment import CONVERSATION, Experiment, Row, Run
from core.simulator.lab.measures import Calculated, saving
from core.simulator.lab.why import Claim, why

SCENARIO = """
# Two instances for twenty seconds.
fleet: {name: node, count: 2, model: Llama2-13B, gpu: A100-80GB, tp: 1}
workload: {generate: poisson, prompt_tokens: 300, output_tokens: 30, rate_rps: 3, duration_s: 20, rate_scale: 1.5}
sites: {site: {gpus: {A100-80GB: 2}}}
slo: {ttft_s: 0.5, tpot_s: 0.03}
"""
RUNS = (Run("before", "single_pool"), Run("after", "least_loaded"), Run("fewer", "single_pool", ("fleet.count=1",)))
IDLES = why(
    "one instance idles where two do: {less} less GPU time",
    less=Claim(saving("fewer", "before", "gpu_hours"), 50.0, "%"),
)
ROWS = (
    Row("saving of one", "fig. 1", "%", 40.0, saving("fewer", "before"), IDLES),
    Row("saving of another router", "table 2", "%", 90.0, saving("after", "before")),
    Row("by hand", "table 3", "", 10.0, Calculated("by hand", lambda: 9.0)),
)
TINY = Experiment("tiny", "Paper, fig. 1 and table 2: two instances", "tiny", RUNS, ROWS, stands_in="All is ours.")
TRACED = Experiment(
    "traced",
    "Paper, fig. 3: on a trace",
    "tiny",
    RUNS[:2],
    ROWS[1:],
    trace=CONVERSATION,
    bound=True,
    listed=("after",),
    table=energy_by_kind,
)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of the papers' experiments and of the scenarios that come with the product."""
    (folder / "tiny.yaml").write_text(SCENARIO, encoding="utf-8")
    monkeypatch.setattr(shipped_scenarios, "folder", lambda: folder)
    monkeypatch.setattr("scheduler.whatif.shipped_scenarios.folder", lambda: folder)
    monkeypatch.setattr(experiments, "EXPERIMENTS", {own.name: own for own in (TINY, TRACED)})
