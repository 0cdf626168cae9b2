"""lab: the papers' experiments in the simulator, published beside simulated. No Django, no servers."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from core.simulator.workload.public_traces import PUBLIC_TRACES
from greenserve import env
from greenserve.cli import fail
from greenserve.commands.simulate import RATES, SCALE

if TYPE_CHECKING:
    from core.simulator.lab.experiment import Experiment, Table
    from core.simulator.lab.found import Found
    from core.simulator.lab.runs import Given

DOCUMENT = Path("docs/results.md")
WIDTH = 160  # of tables that no terminal shows, in characters


@click.command()
@click.argument("names", metavar="[EXPERIMENT...]", nargs=-1)
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The Azure conversation hour of 2023, or another trace in its place.  [`greenserve trace fetch` gets it]",
)
@RATES
@SCALE
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"The document; its figures are kept beside it.  [default: {DOCUMENT}; of another trace lab-TRACE.md]",
)
@click.option("--all", "every", is_flag=True, help="Run all experiments, not those alone that take minutes.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Runs at a time.")
@click.option("--distributed", is_flag=True, help="Run on the Celery workers of a GreenServe that is up.")
@click.option("--fresh", is_flag=True, help="Run again what is done already.")
@click.option("--list", "only_list", is_flag=True, help="List the experiments, with what their runs took.")
@click.option("--check", is_flag=True, help="Run nothing: say whether the document is what its kept figures give.")
@click.option("--render", is_flag=True, help="Run nothing: write the document of its kept figures, and draw them.")
def lab(
    names: tuple[str, ...],
    trace_file: Path | None,
    rates: Path | None,
    scale: float,
    out: Path | None,
    every: bool,
    workers: int,
    distributed: bool,
    fresh: bool,
    only_list: bool,
    check: bool,
    render: bool,
) -> None:
    """Reproduce the papers' experiments, and write published beside simulated with a picture each.

    Without a name the quick experiments are run, which takes up to 20 minutes on two processors. Figures of the others
    stay in the document as they were. Runs that are done are kept in GREENSERVE_VAR/lab as long as scenario, policy,
    trace and code stay the same: after Ctrl-C the same command goes on.

    Exits with 1 when what is said of a figure no longer holds, and names the sentence and the figure.

    \b
    greenserve lab --trace AzureLLMInferenceTrace_conv.csv
    greenserve lab dynamollm common --trace AzureLLMInferenceTrace_conv.csv
    greenserve lab common --trace my-requests.csv.gz
    greenserve lab common --rates rates.csv --scale 0.01
    greenserve lab --check
    """
    from core.simulator.lab import kept, runs

    given = runs.Given(trace_file, rates, scale)

    try:
        if only_list:
            _list(kept.read((out or DOCUMENT).with_suffix(".json")))
            return
        if check or render:
            _of_kept(out or DOCUMENT, render)
            return
        chosen = _chosen(names, every)
        _wants_traces(chosen, given)
        others = [own for own in chosen if not runs.as_published(own, given)]
        target = out or _document_of(others, rates or trace_file)
        known = kept.read(target.with_suffix(".json"))
        began = time.monotonic()
        mine, failed = _run(chosen, given, workers, fresh, distributed)
        _write(target, {**known, **mine})
        pictures = _draw(target, chosen, mine)
        _print(mine, bool(names))
    except (ValueError, OSError) as error:
        fail(str(error), 2)
    for picture in pictures:
        click.echo(picture)
    if failed:
        click.echo(f"{failed} run{'s' * (failed > 1)} could not be done; {target} says why.", err=True)
    click.echo(f"{target} written, in {(time.monotonic() - began) / 60.0:.1f} min.")
    _end([words for own in chosen if own not in others for words in _drifted(own, mine[own.name])])


def _list(figures: Mapping[str, Found]) -> None:
    """Lists the experiments, with what their runs took on one processor where that is kept."""
    from core.simulator.lab.experiments import EXPERIMENTS
    from core.simulator.lab.kept import WALL

    for own in EXPERIMENTS.values():
        took_s = sum(run[WALL] for run in figures[own.name].runs.values()) if own.name in figures else None
        words = "-" if took_s is None else f"{took_s / 60.0:.1f} min"
        click.echo(f"{own.name:18} {'quick' if own.quick else '-':6} {words:>9}  {own.title}")


def _chosen(names: Sequence[str], every: bool) -> list[Experiment]:
    from core.simulator.lab.experiments import EXPERIMENTS

    if unknown := [name for name in names if name not in EXPERIMENTS]:
        fail(f"there is no experiment '{unknown[0]}'; there are: {', '.join(EXPERIMENTS)}", 2)
    if names:
        return [EXPERIMENTS[name] for name in dict.fromkeys(names)]
    return [own for own in EXPERIMENTS.values() if every or own.quick]


def _document_of(others: Sequence[Experiment], file: Path | None) -> Path:
    """Returns where results go: what is published is not of others' requests, which have a document of their own."""
    return Path(f"lab-{file.name.partition('.')[0]}.md") if others and file else DOCUMENT


def _wants_traces(chosen: Sequence[Experiment], given: Given) -> None:
    wanting = [own for own in chosen if own.trace is not None and given.trace is None and given.rates is None]
    if wanting:
        known = PUBLIC_TRACES[wanting[0].trace or ""]
        fail(f"{wanting[0].name} runs on a trace: give --trace ({known.url}; {known.licence})", 2)


def _run(
    chosen: Sequence[Experiment], given: Given, workers: int, fresh: bool, distributed: bool
) -> tuple[dict[str, Found], int]:
    """Returns what came of each experiment, and how many runs could not be done."""
    from core.simulator.lab.runs import found_of, job_of
    from core.simulator.lab.store import Store
    from greenserve import lab_runs

    jobs = {(own.name, run.label): job_of(own, run, given) for own in chosen for run in own.runs}
    wanted, store = list(dict.fromkeys(jobs.values())), Store(env.read().var_dir / "lab")
    doing = lab_runs.on_workers if distributed else partial(lab_runs.here, workers=workers)
    figures, failed = lab_runs.done(wanted, store, fresh, doing)
    found = {}
    for own in chosen:
        mine = {run.label: jobs[own.name, run.label] for run in own.runs}
        results = {label: figures[job] for label, job in mine.items() if job in figures}
        wrong = {label: failed[job] for label, job in mine.items() if job in failed}
        found[own.name] = found_of(own, results, wrong, given)
    return found, len(failed)


def _write(target: Path, found: Mapping[str, Found]) -> None:
    """Writes the figures, and the document of what was written."""
    from core.simulator.lab import kept, lab_document
    from core.simulator.lab.experiments import EXPERIMENTS

    target.parent.mkdir(parents=True, exist_ok=True)
    figures = target.with_suffix(".json")
    kept.write(figures, {name: found[name] for name in EXPERIMENTS if name in found})
    target.write_text(lab_document.document(EXPERIMENTS.values(), kept.read(figures)), encoding="utf-8")


def _draw(target: Path, chosen: Sequence[Experiment], found: Mapping[str, Found]) -> list[Path]:
    from core.simulator.lab import lab_charts
    from frontend.charts import value_figures
    from frontend.charts.figure_page import write_page

    folder = target.parent / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for own in chosen:
        mine = found[own.name]
        if mine.runs:
            drawn.append(folder / f"lab-{own.name}.html")
            chart = lab_charts.chart_of(own, mine.runs, mine.bound)
            write_page(drawn[-1], partial(value_figures.bars, chart))
    return drawn


def _print(found: Mapping[str, Found], named: bool) -> None:
    """Shows the tables of named experiments, else the headlines of all."""
    from core.simulator.lab import lab_document
    from core.simulator.lab.comparison import compared
    from core.simulator.lab.experiments import EXPERIMENTS

    if not named:
        _print_table("", lab_document.overview([EXPERIMENTS[name] for name in found], found))
        return
    for name, own in found.items():
        experiment = EXPERIMENTS[name]
        if experiment.rows:
            _print_table(experiment.title, lab_document.published_table(compared(experiment, own.results)))
        if shown := experiment.shown(own.results):
            _print_table(f"{experiment.title}: runs", lab_document.runs_table(shown, own.bound))


def _print_table(title: str, table: Table) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as Printed

    printed = Printed(title=escape(title))
    for name in table.head:
        printed.add_column(escape(name), overflow="fold")
    for row in table.rows:
        printed.add_row(*map(escape, row))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(printed)


def _of_kept(target: Path, render: bool) -> None:
    """Writes the document of the kept figures, or compares it with them; ends with 1 where something does not hold."""
    from core.simulator.lab import kept, lab_document
    from core.simulator.lab.experiments import EXPERIMENTS

    figures = kept.read(target.with_suffix(".json"))
    if not figures:
        fail(f"{target.with_suffix('.json')}: there is none; `greenserve lab` writes it", 2)
    known = [
        own for own in EXPERIMENTS.values() if own.name in figures
    ]  # of others the document says that it lacks them
    wrong = kept.lacks(known, figures)
    wrong += [words for own in known for words in _drifted(own, figures[own.name])]
    text = lab_document.document(EXPERIMENTS.values(), figures)
    if render:
        target.write_text(text, encoding="utf-8")
        _draw(target, known, figures)
    elif lab_document.plain(target.read_text(encoding="utf-8")) != text:
        wrong.append(f"{target} is not what its figures give: `greenserve lab --render` writes it")
    _end(wrong)
    click.echo(f"{target}: {'written' if render else 'all of it holds'}.")


def _drifted(experiment: Experiment, found: Found) -> list[str]:
    from core.simulator.lab.comparison import drifted

    return drifted(experiment, found.results)


def _end(wrong: Sequence[str]) -> None:
    """Ends with 1, and says why, where something does not hold."""
    if wrong:
        click.echo("\n".join(wrong), err=True)
        fail(f"{len(wrong)} thing{'s' * (len(wrong) > 1)} in the document no longer hold")
