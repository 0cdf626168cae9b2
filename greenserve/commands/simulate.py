"""simulate and compare: scenarios in the simulator. No Django, no servers."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenserve.cli import fail

if TYPE_CHECKING:
    from core.simulator.runs.simulation_jobs import SimulationJob
    from core.simulator.scenario.scenario import Scenario

SCENARIO = click.argument("scenario_file", metavar="SCENARIO.yaml", type=click.Path(path_type=Path))
TRACE = click.option(
    "--trace", type=click.Path(path_type=Path), help="Requests from this trace (Azure, BurstGPT or plain format)."
)
RATES = click.option(
    "--rates",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE.csv",
    help="Poisson requests at these rates (start_s, requests_s); lengths like the trace's, else the scenario's.",
)
SCALE = click.option(
    "--scale", type=click.FloatRange(0.0, min_open=True), default=1.0, show_default=True, help="Times the rates."
)
SETTINGS = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a field, like workload.rate_rps=5.",
)
SEED = click.option("--seed", type=click.IntRange(0), help="Override the scenario's seed.")
JSON = click.option("--json", "json_out", metavar="OUT", help="Write the figures as JSON to OUT (- : standard output).")
QUIET = click.option("--quiet", is_flag=True, help="No progress bar.")  # compare draws none: taken all the same

DRAWN_SEGMENTS = 1_000_000  # of all instances: 72 MB
# Figure -> (label, unit). Quantiles follow separately.
FIGURES = {
    "requests": ("requests", ""),
    "rejected": ("rejected", ""),
    "simulated_s": ("simulated time", "s"),
    "energy_wh": ("energy", "Wh"),
    "mean_power_w": ("mean power", "W"),
    "carbon_g": ("carbon", "gCO2e"),
    "cost_usd": ("cost", "USD"),
    "gpu_hours": ("GPU time", "h"),
    "clock_mhz": ("mean clock", "MHz"),
    "slo_attainment": ("SLO attainment", ""),
    "violation_rate": ("violation rate (E2E > 5 x Lat)", ""),
    "goodput_rps": ("goodput", "requests/s"),
    "goodput_tokens_s": ("goodput", "tokens/s"),
    "jain_tenants": ("Jain index of tenants", ""),
    "jain_lengths": ("Jain index of lengths", ""),
    "preemptions": ("preemptions", ""),
    "retries": ("retries", ""),
    "wall_s": ("computed in", "s"),
    "simulated_rps": ("requests simulated", "per s"),
}
LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "E2E"}
RATIOS = (
    "energy_wh",
    "carbon_g",
    "cost_usd",
    "gpu_hours",
    "slo_attainment",
    "goodput_rps",
    "violation_rate",
    "jain_lengths",
)


@click.command()
@SCENARIO
@TRACE
@RATES
@SCALE
@click.option("--policy", help="Another policy: NAME or 'NAME {key: value}'.")
@SETTINGS
@SEED
@JSON
@click.option("--parquet", type=click.Path(path_type=Path), metavar="DIR", help="Write requests and energy as Parquet.")
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="Draw the first instance over time, as a page beside which the script that draws is put.",
)
@click.option(
    "--capacity",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    metavar="SHARE",
    help="Also search the largest rate that keeps this SLO attainment.",
)
@click.option(
    "--stepping",
    "--mode",
    "stepping",
    type=click.Choice(["macro", "walk"]),
    default="macro",
    show_default=True,
    help="How time goes on: from event to event, or through each iteration. --mode is its old name.",
)
@QUIET
def simulate(
    scenario_file: Path,
    trace: Path | None,
    rates: Path | None,
    scale: float,
    policy: str | None,
    settings: tuple[str, ...],
    seed: int | None,
    json_out: str | None,
    parquet: Path | None,
    picture: Path | None,
    capacity: float | None,
    stepping: str,
    quiet: bool,
) -> None:
    """Run a scenario in the simulator and print what it took: energy, carbon, cost, latencies, SLO attainment.

    --stepping walk goes through each iteration instead of jumping between events: the same figures, later.
    Ctrl-C prints what was simulated so far.

    \b
    greenserve simulate scenarios/azure-conv-12xh100.yaml --trace AzureLLMInferenceTrace_conv.csv
    greenserve simulate scenarios/azure-conv-12xh100.yaml --set workload.rate_rps=8 --policy threshold
    greenserve simulate scenarios/azure-conv-12xh100.yaml --rates RATES.csv --scale 0.01
    """
    with _errors():
        from core.simulator.kernel.driver import STEPPINGS
        from core.simulator.runs import runner

        if rates is not None:
            settings, trace = (*_at_rates(scenario_file, settings, rates, scale, trace), *settings), None
        scenario = _prepare(scenario_file, settings, seed, [policy])
        requests = runner.requests_of(scenario, trace)
        with _progress(not quiet and json_out != "-") as progress, _stoppable(progress) as on_progress:
            segments = DRAWN_SEGMENTS if picture else 0
            run = runner.run_scenario(scenario, requests, policy, STEPPINGS[stepping], on_progress, parquet, segments)
        if picture is not None:
            from core.simulator.figures.instance_picture import instance_panels
            from frontend.charts.figure_page import write_page
            from frontend.charts.value_figures import panels

            write_page(picture, partial(panels, instance_panels(run.outcome)))
        figures = run.figures
        if capacity is not None and not run.outcome.partial:
            figures |= {"capacity_at_slo": runner.capacity(scenario, policy, capacity, trace)}
    _write(json_out, figures)
    if json_out != "-":
        _print_run(figures)
    if run.outcome.partial:
        click.echo(f"Interrupted: these are the first {figures['simulated_s']:.0f} simulated seconds.", err=True)
        raise SystemExit(130)


@click.command()
@SCENARIO
@TRACE
@click.option(
    "--policy",
    "policies",
    multiple=True,
    required=True,
    help="NAME or 'NAME {key: value}'; repeat it; ratios are to the first.",
)
@SETTINGS
@SEED
@JSON
@click.option("--distributed", is_flag=True, help="Run on the Celery workers of a GreenServe that is up.")
@QUIET
def compare(
    scenario_file: Path,
    trace: Path | None,
    policies: tuple[str, ...],
    settings: tuple[str, ...],
    seed: int | None,
    json_out: str | None,
    distributed: bool,
    quiet: bool,
) -> None:
    """Run a scenario under several policies, side by side in processes of their own, and print ratios to the first.

    --distributed spreads them over Celery workers instead; the scenario's files must be readable where those run.

    \b
    greenserve compare scenarios/azure-conv-12xh100.yaml --policy single_pool --policy threshold
    greenserve compare SCENARIO.yaml --policy freesh --policy 'freesh {order: fcfs}' --policy 'freesh {clock: fixed}'
    """
    if len(set(policies)) < len(policies):
        raise click.UsageError("a policy is named twice")
    with _errors():
        from core.simulator.runs.simulation_jobs import SimulationJob

        _prepare(scenario_file, settings, seed, list(policies))
        jobs = [
            SimulationJob(
                str(scenario_file.resolve()),
                settings if seed is None else (*settings, f"seed={seed}"),
                policy,
                None if trace is None else str(trace.resolve()),
            )
            for policy in policies
        ]
        results = _on_workers(jobs) if distributed else _side_by_side(jobs)
    ratios = {r["policy"]: {key: _ratio(r[key], results[0][key]) for key in RATIOS} for r in results}
    _write(json_out, {"runs": results, "ratios_to": policies[0], "ratios": ratios})
    if json_out != "-":
        _print_comparison(results)
    if any(result["partial"] for result in results):
        click.echo("Interrupted: these are partial runs, of different lengths perhaps.", err=True)
        raise SystemExit(130)


def _at_rates(
    path: Path, settings: tuple[str, ...], rates: Path, scale: float, template: Path | None
) -> tuple[str, ...]:
    """Returns the settings that put the rates in the place of the workload's own; `template`: of lengths."""
    from core.simulator.scenario.scenario import read_scenario
    from core.simulator.workload.rate_table import read_rates, settings_of

    services = read_scenario(path, settings).services
    if len(services) > 1:
        raise ValueError(f"--rates: {path} has {len(services)} services; give each one's workload a rate_curve")
    return settings_of(read_rates(rates), scale, services[0].workload, template)


def _prepare(path: Path, settings: tuple[str, ...], seed: int | None, policies: list[str | None]) -> Scenario:
    """Reads what is needed, and compiles or loads the kernel, so that runs start at once."""
    from core.simulator.runs.runner import warm_up
    from core.simulator.scenario.scenario import policy_of, read_scenario

    scenario = read_scenario(path, settings if seed is None else (*settings, f"seed={seed}"))
    for policy in policies:
        policy_of(scenario, policy)
    warm_up(scenario)
    return scenario


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Ends the command with one line and status 2 at bad input."""
    try:
        yield
    except (ValueError, OSError) as error:  # ScenarioError, SimulationError, TraceError, UnknownConfiguration
        fail(str(error), 2)


@contextlib.contextmanager
def _progress(show: bool) -> Iterator[Callable[[float | None, float], None] | None]:
    if not show or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=None)

        def report(share: float | None, now_s: float) -> None:
            total = None if share is None else 1.0
            bar.update(task, description=f"{now_s / 3600.0:.1f} h simulated", total=total, completed=share or 0.0)

        yield report


@contextlib.contextmanager
def _stoppable(
    progress: Callable[[float | None, float], None] | None,
) -> Iterator[Callable[[float | None, float], None]]:
    """Lets Ctrl-C stop the run where its figures are complete: between two slices. A second one stops it at once."""
    asked = False

    def stop(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def report(share: float | None, now_s: float) -> None:
        if progress is not None:
            progress(share, now_s)
        if asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield report
    finally:
        signal.signal(signal.SIGINT, before)


def _side_by_side(jobs: list[SimulationJob]) -> list[dict[str, Any]]:
    """Runs each policy in a process of its own. Ctrl-C reaches all of them: each hands back what it has."""
    with ProcessPoolExecutor(max_workers=len(jobs)) as pool:
        futures = [pool.submit(_one, job) for job in jobs]
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return [future.result() for future in futures]
        finally:
            signal.signal(signal.SIGINT, before)


def _one(job: SimulationJob) -> dict[str, Any]:
    with _stoppable(None) as on_progress:
        return job.run(on_progress)


def _on_workers(jobs: list[SimulationJob]) -> list[dict[str, Any]]:
    """Runs each policy as a Celery task. Raises ValueError, in a worker's own words, when one could not be run."""
    from greenserve.distributed import run_on_workers

    return run_on_workers(jobs)


def _write(out: str | None, figures: dict[str, Any]) -> None:
    if out is None:
        return
    text = json.dumps(figures, indent=2, allow_nan=False)
    if out == "-":
        click.echo(text)
        return
    try:
        Path(out).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"{out}: cannot be written: {error.strerror}")


def _ratio(value: float | None, first: float | None) -> float | None:
    return None if value is None or not first else value / first


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _print_run(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{figures['scenario']}, {figures['policy']}", show_header=False)
    for key, (label, unit) in FIGURES.items():
        table.add_row(label, _number(figures[key]), unit)
    for kind, energy_wh in figures["energy_wh_by"].items():
        table.add_row(f"energy, {kind}", _number(energy_wh), "Wh")
    console.print(table)
    latencies = Table("latency, s", "p50", "p90", "p99", "mean")
    for key, label in LATENCIES.items():
        latencies.add_row(label, *(_number(figures[key][name]) for name in ("p50", "p90", "p99", "mean")))
    console.print(latencies)


def _print_comparison(results: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("", *(escape(result["policy"]) for result in results))
    rows: list[tuple[str, list[float | None]]] = [
        (f"{label} {unit}".strip(), [r[key] for r in results]) for key, (label, unit) in FIGURES.items()
    ]
    rows += [(f"{label} p99 s", [r[key]["p99"] for r in results]) for key, label in LATENCIES.items()]
    for label, values in rows:
        cells = [_number(values[0])]
        for value in values[1:]:
            ratio = _ratio(value, values[0])
            cells.append(_number(value) + ("" if ratio is None else f"  ({ratio:.3f}x)"))
        table.add_row(label, *cells)
    loops = dict.fromkeys(loop for result in results for loop in (*result["decisions"], *result["holds"]))
    for loop in loops:
        table.add_row(f"decisions, {loop}", *(_decided(result, loop) for result in results))
    Console().print(table)


def _decided(result: dict[str, Any], loop: str) -> str:
    """Returns what a loop decided, by reason. Fast loops only count that they changed nothing; they do not log it."""
    counts = dict(result["decisions"].get(loop, {}))
    if holds := result["holds"].get(loop, 0):
        counts.setdefault("no_change", holds)
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items()) or "-"
