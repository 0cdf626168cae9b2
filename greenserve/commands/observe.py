"""observe: energy, attainment and modelled savings of a fleet that runs without GreenServe. No Django, no servers."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenserve.cli import fail
from greenserve.commands.observe_sources import Sources, trust_of
from greenserve.commands.secret_files import secret_of_file

if TYPE_CHECKING:
    from telemetry.observing.observation import Savings
    from telemetry.observing.recording import Recording
    from telemetry.observing.report import Findings, Terms
    from telemetry.observing.scrapes import Target
    from telemetry.observing.site_terms import SiteTerms

SECONDS = click.FloatRange(0.0, min_open=True)
FILE = click.Path(path_type=Path, dir_okay=False)
WORKERS = 2
WIDTH = 140  # of what is no terminal


@click.command()
@click.option("--metrics", multiple=True, metavar="URL", help="An engine's page, http://HOST:PORT/metrics; repeat it.")
@click.option("--dcgm", multiple=True, metavar="URL", help="A DCGM exporter's page; repeat it.")
@click.option("--prometheus", metavar="URL", help="Read the last hours from a Prometheus instead of pages.")
@click.option("--hours", type=SECONDS, default=24.0, show_default=True, help="Of --prometheus.")
@click.option(
    "--match", metavar="MATCHERS", default="", help="Of --prometheus: labels of the fleet, like 'cluster=\"a\"'."
)
@click.option("--minutes", type=SECONDS, default=15.0, show_default=True, help="How long pages are read.")
@click.option("--every", "every_s", type=click.FloatRange(1.0), default=15.0, show_default=True, help="Seconds.")
@click.option(
    "--key-file",
    "key",
    type=secret_of_file,
    metavar="FILE",
    help="File with the key that the engines' pages or the Prometheus ask for, - for standard input.",
)
@click.option("--authority", type=FILE, metavar="FILE", help="PEM file of who signs the pages' certificates.")
@click.option("--ttft-s", type=SECONDS, help="Objective of the time to the first token.  [default: what 99 % keep now]")
@click.option("--tpot-s", type=SECONDS, help="Objective of a request's mean time per token.  [default: the same]")
@click.option("--e2e-s", type=SECONDS, help="Objective of a request's latency.  [default: the same]")
@click.option(
    "--carbon", metavar="G_PER_KWH|FILE.csv|ZONE", help="Intensity: a number, hours of a file, or GB, GB-1 ..."
)
@click.option("--pue", type=click.FloatRange(1.0), default=1.0, show_default=True, help="Of the site.")
@click.option("--price", type=float, help="Of a kWh, in --currency.")
@click.option("--gpu-hour", type=click.FloatRange(0.0), help="Price of a GPU-hour, in --currency.")
@click.option("--currency", metavar="CODE", help="Such as EUR.")
@click.option("--tenant-label", help="Label of engines' metrics that names tenants.")
@click.option("--declared-w", type=SECONDS, help="Watts of each GPU where there is no DCGM exporter.")
@click.option("--gpus", type=click.IntRange(1), help="Of --declared-w: how many.")
@click.option("--model", "models", multiple=True, metavar="[PAGE=]NAME", help="What a page's model is; repeat it.")
@click.option("--gpu", help="GPU type of the engines.  [default: as the exporter says]")
@click.option("--tp", type=click.IntRange(1, 128), help="GPUs of an engine.  [default: GPUs over engines]")
@click.option("--savings/--no-savings", default=True, show_default=True, help="Simulate the policies.")
@click.option("--savings-s", type=SECONDS, default=120.0, show_default=True, help="The longest that may take.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the requests that are drawn.")
@click.option("--json", "json_out", type=FILE, help="Write the document as JSON.")
@click.option("--html", "html_out", type=FILE, help="Write what is printed as a page.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the document, and do nothing else.")
def observe(
    metrics: tuple[str, ...],
    dcgm: tuple[str, ...],
    prometheus: str | None,
    hours: float,
    match: str,
    minutes: float,
    every_s: float,
    key: str | None,
    authority: Path | None,
    ttft_s: float | None,
    tpot_s: float | None,
    e2e_s: float | None,
    carbon: str | None,
    pue: float,
    price: float | None,
    gpu_hour: float | None,
    currency: str | None,
    tenant_label: str | None,
    declared_w: float | None,
    gpus: int | None,
    models: tuple[str, ...],
    gpu: str | None,
    tp: int | None,
    savings: bool,
    savings_s: float,
    seed: int,
    json_out: Path | None,
    html_out: Path | None,
    schema: bool,
) -> None:
    """Show what a fleet of vLLM, SGLang or TensorRT-LLM uses, emits and costs as it is, whether it keeps its
    objectives, and what each policy of GreenServe would have saved on the recorded traffic.

    It reads metrics pages, and nothing else: no root, no agent, no database, no clock is touched. Ctrl-C ends the
    reading, and what was seen is reported.

    \b
    greenserve observe --metrics http://gpu1:8000/metrics --dcgm http://gpu1:9400/metrics --carbon 350
    greenserve observe --prometheus http://prometheus:9090 --hours 24 --model Llama3-70B --json observed.json
    """
    from core.simulator.fields import ScenarioError
    from telemetry.observing import observation, report, site_terms

    if schema:
        click.echo(json.dumps(observation.json_schema(), indent=2))
        return
    sources = Sources(metrics, dcgm, prometheus, hours, match, minutes, every_s, key or "", trust_of(authority))
    sources.check()
    _check(currency, (price, gpu_hour), declared_w, gpus)
    site = site_terms.SiteTerms(pue, carbon, price, gpu_hour)
    named = _models(models)
    with tempfile.TemporaryDirectory(prefix="greenserve-observe-") as name:
        folder = Path(name)
        section = _section(site, folder, sources)
        recording = _recorded(sources, models=named)
        start = report.start_of(recording)
        try:
            terms = report.Terms(
                site=site_terms.site_of(section, start),
                start=start,
                objectives={"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s},
                currency=currency,
                tenant_label=tenant_label,
                declared_w=declared_w,
                declared_gpus=gpus or 0,
                models=named(recording),
                gpu=gpu,
                tp=tp,
            )
        except ScenarioError as error:
            fail(str(error), 2)
        found = report.find(recording, terms)
        result = found.observation
        if savings:
            result = replace(result, savings=_savings(found, terms, section, seed, savings_s, folder))
    _write(result, json_out, html_out)
    if recording.ended_early:
        raise SystemExit(130)


def _check(currency: str | None, prices: Sequence[float | None], declared_w: float | None, gpus: int | None) -> None:
    """Raises UsageError for options that do not go together."""
    if any(price is not None for price in prices) != (currency is not None):
        raise click.UsageError("--currency goes with --price or --gpu-hour, and these with it")
    if (declared_w is None) != (gpus is None):
        raise click.UsageError("--declared-w and --gpus go together: watts of each GPU, and how many there are")


def _section(site: SiteTerms, folder: Path, sources: Sources) -> dict[str, Any]:
    """Returns PUE, carbon and prices; a mistake in them is known before minutes have gone by."""
    from datetime import UTC, datetime

    from core.ports import AdapterError
    from core.simulator.fields import ScenarioError
    from telemetry.observing.site_terms import site_of
    from telemetry.providers.provider_http import Outside

    now_s = time.time()
    from_s = now_s - sources.length_s if sources.prometheus else now_s
    try:
        section = site.section(folder, from_s, from_s + sources.length_s + 3600.0, Outside())
        site_of(section, datetime.fromtimestamp(now_s // 1, UTC))
    except (AdapterError, ScenarioError) as error:
        fail(f"{error}; --carbon is a number of g/kWh, a CSV file with start and value, or GB, GB-1 to GB-17", 2)
    return section


def _models(given: Sequence[str]) -> Callable[[Recording], dict[str, str]]:
    """Checks --model, and returns what makes it names by the models of a recording's pages."""
    from core.engine.model_config import BadConfig
    from greenserve.commands.engine.model import shape_of

    by_page: dict[str, str] = {}
    for text in given:
        page, _, place = text.rpartition("=")
        try:
            by_page[page] = shape_of(place).key
        except BadConfig as error:
            fail(f"--model {text}: {error}", 2)

    def of(recording: Recording) -> dict[str, str]:
        from telemetry.observing.engine_courses import engine_course
        from telemetry.observing.traffic import UNNAMED

        courses = [course for target in recording.engines if (course := engine_course(target)) is not None]
        names = {course.model or UNNAMED for course in courses}
        if strange := [page for page in by_page if page and page not in names]:
            fail(f"--model: no page has the model '{strange[0]}'; they have {', '.join(sorted(names)) or 'none'}", 2)
        whole = dict.fromkeys(names, by_page[""]) if "" in by_page else {}
        return whole | {page: shape for page, shape in by_page.items() if page}

    return of


def _recorded(sources: Sources, models: Callable[[Recording], dict[str, str]]) -> Recording:
    """Reads what there is. Ends the program where no engine can be read."""
    from telemetry.observing.prometheus_api import PrometheusError, read_hours
    from telemetry.observing.recording import Page, Recording, SystemClock, record
    from telemetry.observing.scrapes import TargetKind

    if sources.prometheus:
        try:
            with _progress("asking Prometheus") as progress:
                recording = read_hours(
                    sources.prometheus, sources.hours, time.time(), sources.match, progress, sources.fetch
                )
        except PrometheusError as error:
            fail(str(error))
        except KeyboardInterrupt:
            fail("Interrupted: nothing was read completely, so there is nothing to report.", 130)
        if not recording.engines:
            fail(f"{sources.prometheus} has no metrics of vLLM, SGLang or TensorRT-LLM in the last {sources.hours:g} h")
        return recording
    pages = [Page(url, TargetKind.ENGINE) for url in sources.metrics]
    pages += [Page(url, TargetKind.GPUS) for url in sources.dcgm]
    with _progress(f"observing {len(pages)} page{'s' * (len(pages) > 1)}") as progress:
        checked = False

        def after_round(targets: Sequence[Target], share: float) -> None:
            nonlocal checked
            if not checked:
                _check_engines(Recording(tuple(targets), sources.every_s, sources.length_s, ""), models)
            checked = True
            progress(share)

        return record(pages, sources.length_s, sources.every_s, SystemClock(), after_round, sources.fetch)


def _check_engines(first: Recording, models: Callable[[Recording], dict[str, str]]) -> None:
    """Ends the program after the first round where it would report nothing; warns of pages that cannot be read."""
    from telemetry.observing.scrapes import engine_of

    faults = [f"{target.name}: {target.scrapes[-1].error}" for target in first.targets if not target.read]
    faults += [
        f"{target.name}: no metrics of vLLM, SGLang or TensorRT-LLM are on this page"
        for target in first.engines
        if target.read and engine_of(target) is None
    ]
    if all(engine_of(target) is None for target in first.engines):
        fail("no engine can be read:\n  " + "\n  ".join(faults))
    models(first)
    for fault in faults:
        click.echo(f"{fault}; it is tried again", err=True)


def _savings(found: Findings, terms: Terms, section: dict[str, Any], seed: int, most_s: float, folder: Path) -> Savings:
    """Runs the policies two at a time. Ctrl-C stops them, and so does the end of their time."""
    from core.simulator.runs.simulation_jobs import SimulationJob
    from greenserve import lab_runs
    from telemetry.observing import report, savings
    from telemetry.observing.observation import Savings

    objectives = report.simulated_objectives(found.observation.attainment)
    try:
        fleet = report.fleet_of(found, terms, section)
        scenario, notes = savings.scenario_of(found.traffic, fleet, objectives, seed, terms.start)
    except savings.NoSavings as error:
        return Savings(str(error))
    path = folder / "observed.yaml"
    path.write_text(json.dumps(scenario), encoding="utf-8")  # which is YAML, too
    policies, left_out = savings.policies_for(objectives, sum(own.requests for own in found.traffic))
    # `here` begins with the last one, and the baseline must be there whatever else is.
    jobs = [SimulationJob(str(path), (), policy) for policy in reversed(policies)]
    runs: dict[str, Any] = {}
    why = "stopped"
    try:
        with _progress(f"simulating {len(jobs)} policies") as progress:
            for job, ended in lab_runs.here(jobs, WORKERS, most_s):
                if isinstance(ended, str):
                    left_out[job.policy] = ended
                else:
                    runs[job.policy] = ended
                progress((len(runs) + len(left_out)) / (len(jobs) + len(left_out)))
    except TimeoutError:
        why = f"not done within {most_s:g} s: raise --savings-s"
    except KeyboardInterrupt:
        why = "stopped by Ctrl-C"
    except (ValueError, BrokenProcessPool) as error:  # what was observed must not be lost with it
        why = f"the simulation failed: {error}"
    left_out |= {policy: why for policy in policies if policy not in runs and policy not in left_out}
    return savings.savings_of(runs, left_out, found.metered_wh, notes)


def _write(found: Any, json_out: Path | None, html_out: Path | None) -> None:
    from rich.console import Console

    from telemetry.observing.observation import as_json
    from telemetry.observing.observation_text import print_observation

    console = Console(record=html_out is not None, width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    print_observation(found, console)
    try:
        if json_out is not None:
            json_out.write_bytes(as_json(found))
        if html_out is not None:
            console.save_html(str(html_out))
    except OSError as error:
        fail(f"{error.filename}: cannot be written: {error.strerror}")


@contextlib.contextmanager
def _progress(words: str) -> Iterator[Callable[[float], None]]:
    """Shows the share that is done on stderr: as a bar, or a line for each tenth where that is no terminal."""
    if not sys.stderr.isatty():
        shown = -1

        def tell(share: float) -> None:
            nonlocal shown
            if int(10.0 * share) > shown:
                shown = int(10.0 * share)
                click.echo(f"{words}: {10 * shown} %", err=True)

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=1.0)
        yield lambda share: bar.update(task, completed=share)
