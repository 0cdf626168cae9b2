"""Results as Markdown: one table of all papers, then a section for each experiment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from core.simulator.lab import decomposition
from core.simulator.lab.bound import Bound
from core.simulator.lab.comparison import KEPT, MARK, OFF, Compared, compared, sentences
from core.simulator.lab.experiment import Experiment, Table
from core.simulator.lab.found import Found
from core.simulator.lab.lab_charts import chart_of
from core.simulator.lab.measures import CALCULATED, Results, in_words

HEAD = f"""# Results

What papers published against what their systems do in the simulator, made by `greenserve lab`. The simulator's physics
is the engine model (docs/fidelity.md); nothing of it was fitted to these results.

- A figure that is {CALCULATED} comes from profiles or the engine model; all others come from runs.
- A row about energy, carbon, power or GPU time shows the SLO attainment of the run, and in brackets its baseline's.
  {MARK}: it is below the baseline's, or below {100.0 * KEPT:g} %.
- Where a figure is off by more than {100.0 * OFF:g} % of the published one, a line below its table says why. What it
  says of runs is read off them; "not known" means that nobody knows yet.

The figures of all runs are in results.json; `greenserve lab --check` says whether this page is what they give.
`greenserve lab` runs the quick experiments again, `greenserve lab --all` all of them and `greenserve lab NAME` one; the
figures of the others stay. `greenserve lab --list` says which are quick, and what their runs took.
"""
_IMAGE = re.compile(r"!\[([^\]]+)\]\(((?:[\w-]+/)*[\w.-]+)\.svg\)")
_ROW = ("published", "simulated", "attainment", "ratio")


def document(experiments: Iterable[Experiment], kept: Mapping[str, Found]) -> str:
    """Writes the whole document of the experiments of which there are figures."""
    every = list(experiments)
    known, unknown = ([own for own in every if (own.name in kept) == there] for there in (True, False))
    parts = [HEAD]
    if (papers := overview(known, kept)).rows:
        parts += [*_table(papers), ""]
    parts += [f"Not run here (`greenserve lab {own.name}`): {own.title}.\n" for own in unknown]
    return "\n".join([*parts, *(section(own, kept[own.name], f"pictures/lab-{own.name}.html") for own in known)])


def plain(text: str) -> str:
    """Returns a document with links to the pages of its figures, also where images were made of them."""
    return _IMAGE.sub(r"[\1](\2.html)", text)


def overview(experiments: Iterable[Experiment], kept: Mapping[str, Found]) -> Table:
    """Lists the headlines of all papers."""
    rows = []
    for own in experiments:
        found = {one.row.label: one for one in compared(own, kept[own.name].results) if own.headlines}
        rows += [_headline(own, words, found[label]) for label, words in own.headlines.items()]
    return Table("", ("paper", "headline", "where", *_ROW, "why, where it is off"), tuple(rows))


def _headline(own: Experiment, words: str, row: Compared) -> tuple[str, ...]:
    first, end, _ = row.why.partition(". ")
    return own.paper, words, row.row.place, *row.words(), first + end.rstrip()


def section(experiment: Experiment, found: Found, picture: str) -> str:
    """Writes the section of one experiment: what stands in for what, the link to its picture, published beside
    simulated, and all runs."""
    results, shown = found.results, experiment.shown(found.results)
    parts = [f"## {experiment.title}", ""]
    for words in (experiment.stands_in, *found.notes):
        parts += [words, ""] if words else []
    if shown:
        parts += [f"[{chart_of(experiment, results).about}]({picture})", ""]
    if experiment.rows:
        rows = compared(experiment, results)
        parts += [*_table(published_table(rows)), ""]
        if reasons := [f"- {', '.join(labels)}: {why}" for labels, why in sentences(rows)]:
            parts += [*reasons, ""]
    for table in _tables(experiment, found):
        parts += [table.about, "", *_table(table), ""]
    if shown:
        parts += _table(runs_table(shown, found.bound))
    if found.failed:
        parts += ["", *(f"- {label} could not be run: {words}" for label, words in found.failed.items())]
    return "\n".join(parts) + "\n"


def _tables(experiment: Experiment, found: Found) -> Iterable[Table]:
    """Yields the tables whose runs are there."""
    if experiment.table is not None and all(run.label in found.results for run in experiment.runs):
        yield experiment.table(found.runs)
    if found.decomposition is not None:
        yield decomposition.table(experiment.decomposed, found.decomposition)


def _table(table: Table) -> list[str]:
    return [_line(*table.head), f"|{'---|' * len(table.head)}", *(_line(*row) for row in table.rows)]


def published_table(rows: Sequence[Compared]) -> Table:
    """Lists published beside simulated."""
    published, *others = _ROW
    return Table("", ("", published, "where", *others), tuple(map(_row, rows)))


def _row(own: Compared) -> tuple[str, ...]:
    published, *others = own.words()
    return own.row.label, published, own.row.place, *others


def runs_table(results: Results, bound: Bound | None) -> Table:
    """Lists what the runs took and kept, beside the bound."""
    carbon = any(own["carbon_g"] is not None for own in results.values())
    head = ["run", "Wh", "against the first", *(["gCO2e"] if carbon else [])]
    head += ["attainment", "TTFT p99 s", "TPOT p99 s", "E2E mean s", "GPU h"]
    rows: list[tuple[str, ...]] = []
    first = next(iter(results.values()))["energy_wh"]
    for label, own in results.items():
        cells = [label, *_energy(own["energy_wh"], first), *([_whole(own["carbon_g"])] if carbon else [])]
        latencies = (own["ttft_s"]["p99"], own["tpot_s"]["p99"], own["e2e_s"]["mean"])
        cells += [_number(value) for value in (own["slo_attainment"], *latencies)]
        rows.append((*cells, f"{own['gpu_hours']:.1f}"))
    if bound is not None and bound.energy_wh > 0.0:  # 0: short in all minutes
        figures = (*_energy(bound.energy_wh, first), *([_whole(bound.carbon_g)] if carbon else []))
        rows.append(("*bound*", *figures, "", "", "", "", f"{bound.gpu_hours:.1f}"))
    return Table("", tuple(head), tuple(rows))


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _energy(energy_wh: float, first_wh: float) -> tuple[str, str]:
    return f"{energy_wh:,.0f}", f"{energy_wh / first_wh:.3f}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    return "-" if value is None else in_words(value)
