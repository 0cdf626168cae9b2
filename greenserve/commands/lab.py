"""lab: the papers' experiments in the simulator, published beside simulated. No Django, no servers."""

from __future__ import annotations

import signal
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from core.simulator.workload.public_traces import PUBLIC_TRACES
from greenserve import env
from greenserve.cli import fail

if TYPE_CHECKING:
    from core.simulator.lab.experiment import Experiment
    from core.simulator.lab.store import Store
    from core.simulator.runs.simulation_jobs import SimulationJob

HEAD = """# Results

What papers published against what their systems do in the simulator, made by `greenserve lab`. The simulator's physics
is the engine model (docs/fidelity.md); nothing of it was fitted to these results. Where a figure is off by more than
15 % of the published one, a line below its table says why, or that nobody knows yet.
"""


@click.command()
@click.argument("names", metavar="[EXPERIMENT...]", nargs=-1)
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The Azure conversation hour of 2023, or another hour in its place.  [`greenserve trace fetch` gets it]",
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("docs/results.md"), show_default=True
)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Runs at a time.")
@click.option("--fresh", is_flag=True, help="Run again what is done already.")
@click.option("--list", "only_list", is_flag=True, help="List the experiments.")
def lab(names: tuple[str, ...], trace_file: Path | None, out: Path, workers: int, fresh: bool, only_list: bool) -> None:
    """Reproduce the papers' experiments, and write published beside simulated with a picture each.

    Runs that are done are kept in GREENSERVE_VAR/lab as long as scenario, policy, trace and code stay the same: after
    Ctrl-C the same command goes on.

    \b
    greenserve lab --trace AzureLLMInferenceTrace_conv.csv
    greenserve lab dynamollm common --trace AzureLLMInferenceTrace_conv.csv
    """
    from core.simulator.lab.experiments import EXPERIMENTS
    from core.simulator.lab.runs import job_of
    from core.simulator.lab.store import Store

    if only_list:
        for experiment in EXPERIMENTS.values():
            click.echo(f"{experiment.name:12} {experiment.title}")
        return
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        fail(f"there is no experiment '{unknown[0]}'; there are: {', '.join(EXPERIMENTS)}", 2)
    chosen = [EXPERIMENTS[name] for name in dict.fromkeys(names or EXPERIMENTS)]
    wanting = [own for own in chosen if own.trace is not None and trace_file is None]
    if wanting:
        known = PUBLIC_TRACES[wanting[0].trace or ""]
        fail(f"{wanting[0].name} runs on a trace: give --trace ({known.url}; {known.licence})", 2)
    store = Store(env.read().var_dir / "lab")
    jobs = {(own.name, run.label): job_of(own, run, trace_file) for own in chosen for run in own.runs}
    try:
        figures, failed = _all(list(dict.fromkeys(jobs.values())), store, workers, fresh)
        _write(chosen, jobs, figures, failed, trace_file, out)
    except (ValueError, OSError) as error:
        fail(str(error), 2)
    if failed:
        click.echo(f"{len(failed)} run{'s' * (len(failed) > 1)} could not be done; {out} says why.", err=True)
    click.echo(f"{out} written.")


def _all(
    jobs: list[SimulationJob], store: Store, workers: int, fresh: bool
) -> tuple[dict[SimulationJob, dict[str, Any]], dict[SimulationJob, str]]:
    """Figures of the jobs, those that are known from the store; and of those that cannot be done what is wrong.

    Raises:
        TraceError: The trace cannot be used.
    """
    from core.simulator.kernel.simulated import SimulationError

    known = {} if fresh else {job: figures for job in jobs if (figures := store.find(job)) is not None}
    found: dict[SimulationJob, dict[str, Any]] = dict(known)
    failed: dict[SimulationJob, str] = {}
    todo = [job for job in jobs if job not in found]
    click.echo(f"{len(found)} runs are known, {len(todo)} to do.", err=True)
    with ProcessPoolExecutor(max_workers=workers, initializer=_quiet) as pool:
        # The days of three sites take longest and stand last: begun last, one of them would run by itself at the end.
        waiting: dict[Future[dict[str, Any]], SimulationJob] = {pool.submit(job.run): job for job in reversed(todo)}
        try:
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    job = waiting.pop(future)
                    try:
                        found[job] = future.result()
                        store.keep(job, found[job])
                        words = f"{found[job]['energy_wh']:,.0f} Wh"
                    except SimulationError as error:
                        failed[job] = words = str(error)
                    click.echo(f"{Path(job.scenario).stem}, {job.policy}: {words}; {len(waiting)} left", err=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            fail("Interrupted: what is done is kept, the same command goes on from there.", 130)
    return found, failed


def _quiet() -> None:
    """Ctrl-C is for the parent to hear."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _write(
    chosen: list[Experiment],
    jobs: dict[tuple[str, str], SimulationJob],
    figures: dict[SimulationJob, dict[str, Any]],
    failed: dict[SimulationJob, str],
    trace_file: Path | None,
    out: Path,
) -> None:
    from core.simulator.lab import lab_charts, lab_document
    from core.simulator.lab.runs import found_of
    from frontend.charts import value_figures
    from frontend.charts.figure_page import write_page

    pictures = out.parent / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    parts = [HEAD]
    for own in chosen:
        mine = {run.label: jobs[own.name, run.label] for run in own.runs}
        results = {label: figures[job] for label, job in mine.items() if job in figures}
        found = found_of(own, results, {label: failed[job] for label, job in mine.items() if job in failed}, trace_file)
        drawn = pictures / f"lab-{own.name}.html"
        if results:
            write_page(drawn, partial(value_figures.bars, lab_charts.chart_of(own, results, found.bound)))
        parts.append(lab_document.section(own, found, f"pictures/{drawn.name}"))
    out.write_text("\n".join(parts), encoding="utf-8")
