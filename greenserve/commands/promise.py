"""promise: all policies over all scenarios of rare traffic and given traces, in one table. No Django, no servers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from greenserve import env
from greenserve.cli import fail

if TYPE_CHECKING:
    from core.simulator.lab.kept import Kept
    from core.simulator.lab.promise import Case

PAGE = Path("docs/policies.md")
FIGURES = "promise.json"  # beside the page


@click.command()
@click.argument("names", metavar="[SCENARIO...]", nargs=-1)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A trace whose first hour is a row, at its own rate; repeat it.  [`greenserve trace fetch` gets one]",
)
@click.option(
    "--write", is_flag=True, help=f"Put the table into the page, and keep its figures in {FIGURES} beside it."
)
@click.option("--check", is_flag=True, help="Run nothing: say whether the page's table is what its kept figures give.")
@click.option(
    "--page", type=click.Path(path_type=Path, dir_okay=False), default=PAGE, show_default=True, help="The page."
)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Runs at a time.")
@click.option("--fresh", is_flag=True, help="Run again what is done already.")
def promise(
    names: tuple[str, ...], traces: tuple[Path, ...], write: bool, check: bool, page: Path, workers: int, fresh: bool
) -> None:
    """Run ten policies on faults, rare traffic and given traces: who keeps the objectives, with how much energy.

    Prints a table in Markdown, one of greenserve without each of its means, and one of it beside the least energy that
    any policy could take. All of it takes about 20 minutes on two processors; with names it is of these scenarios
    alone. Runs that are done are kept in GREENSERVE_VAR/lab as `greenserve lab` keeps its own: after Ctrl-C the same
    command goes on.

    --check exits with 1 where the table is another one.

    \b
    greenserve promise --trace AzureLLMInferenceTrace_conv.csv --write
    greenserve promise night spikes
    greenserve promise --check
    """
    from core.simulator.lab import kept
    from core.simulator.lab.promise import cases, chosen, put_into, written

    figures = page.parent / FIGURES
    if write and (check or names):
        raise click.UsageError("--write is of all scenarios: it goes without --check, and without names")
    try:
        if check:
            _check(page, figures)
            return
        if write:
            put_into(page.read_text(encoding="utf-8"), "")  # that there is a place is known before the runs are done
        began = time.monotonic()
        found = _run(chosen(cases(traces), names), workers, fresh)
        if write:
            kept.write(figures, found)
            found = kept.read(figures)
            page.write_text(put_into(page.read_text(encoding="utf-8"), written(found)), encoding="utf-8")
    except (ValueError, OSError) as error:  # ScenarioError, TraceError, PromiseError, KeptError
        fail(str(error), 2)
    click.echo(written(found), nl=False)
    click.echo(f"{f'{page} written, in' if write else 'Took'} {(time.monotonic() - began) / 60.0:.1f} min.", err=True)


def _run(chosen: Sequence[Case], workers: int, fresh: bool) -> Kept:
    """Runs what is not known of these rows. Raises TraceError, ScenarioError."""
    from core.simulator.lab.promise import bounds_of, found_of, job_of, left_out, loads_of, runs_on
    from core.simulator.lab.store import Store
    from greenserve import lab_runs

    try:
        bounds = lab_runs.each(bounds_of, chosen, workers)
    except KeyboardInterrupt:
        fail("Interrupted: no run was begun yet, and what was done before is kept.", 130)
    loads = {case: loads_of(case) | bounds[case] for case in chosen}
    tried = {case: runs_on(load) for case, load in loads.items()}
    skipped = {(case, name): left_out(case, name, loads[case]) for case in chosen for name in tried[case]}
    jobs = {place: job_of(*place) for place, words in skipped.items() if not words}
    store, doing = Store(env.read().var_dir / "lab"), partial(lab_runs.here, workers=workers)
    figures, failed = lab_runs.done(list(jobs.values()), store, fresh, doing)
    found = {}
    for case in chosen:
        mine = {name: jobs[case, name] for name in tried[case] if (case, name) in jobs}
        results = {policy: figures[job] for policy, job in mine.items() if job in figures}
        wrong = {policy: failed[job] for policy, job in mine.items() if job in failed}
        wrong |= {name: words for name in tried[case] if (words := skipped[case, name])}
        found[case.name] = found_of(loads[case], results, wrong)
    return found


def _check(page: Path, figures: Path) -> None:
    """Ends with 1 where the page's table is not that of its kept figures, and with 2 where none are kept."""
    from core.simulator.lab import kept
    from core.simulator.lab.promise import put_into, written

    known = kept.read(figures)
    if not known:
        fail(f"{figures}: there is none; `greenserve promise --write` writes it", 2)
    text = page.read_text(encoding="utf-8")
    if put_into(text, written(known)) != text:
        fail(f"{page} does not have the table of {figures}: `greenserve promise --write` writes it")
    click.echo(f"{page}: its table is that of {figures}.")
