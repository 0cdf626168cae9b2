"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from core.simulator.lab.bound import Bound
from core.simulator.lab.comparison import Compared, compared, sentences
from core.simulator.lab.experiment import Experiment, Found
from core.simulator.lab.lab_charts import chart_of
from core.simulator.lab.measures import Results, in_words


def section(experiment: Experiment, found: Found, picture: str) -> str:
    """Writes the section of one experiment: what stands in for what, the link to its picture, published beside
    simulated, and all runs."""
    results = found.results
    parts = [f"## {experiment.title}", ""]
    for words in (experiment.stands_in, *found.notes):
        parts += [words, ""] if words else []
    if results:
        parts += [f"[{chart_of(experiment, results).about}]({picture})", ""]
    if experiment.rows:
        rows = compared(experiment, results)
        parts += [*_lines(("", "published", "where", "simulated", "ratio"), map(_row, rows)), ""]
        if reasons := [f"- {', '.join(labels)}: {why}" for labels, why in sentences(rows)]:
            parts += [*reasons, ""]
    for table in found.tables:
        parts += [table.about, "", *_lines(table.head, table.rows), ""]
    if shown := experiment.shown(results):
        parts += _runs(shown, found.bound)
    if found.failed:
        parts += ["", *(f"- {label} could not be run: {words}" for label, words in found.failed.items())]
    return "\n".join(parts) + "\n"


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(*head), f"|{'---|' * len(head)}", *(_line(*row) for row in rows)]


def _row(own: Compared) -> tuple[str, ...]:
    published, simulated, ratio = own.words()
    return own.row.label, published, own.row.place, simulated, ratio


def _runs(results: Results, bound: Bound | None) -> list[str]:
    carbon = any(own["carbon_g"] is not None for own in results.values())
    head = ["run", "Wh", "against the first", *(["gCO2e"] if carbon else [])]
    head += ["attainment", "TTFT p99 s", "TPOT p99 s", "E2E mean s", "GPU h"]
    rows: list[Sequence[str]] = []
    first = next(iter(results.values()))["energy_wh"]
    for label, own in results.items():
        cells = [label, *_energy(own["energy_wh"], first), *([_whole(own["carbon_g"])] if carbon else [])]
        latencies = (own["ttft_s"]["p99"], own["tpot_s"]["p99"], own["e2e_s"]["mean"])
        cells += [_number(value) for value in (own["slo_attainment"], *latencies)]
        rows.append((*cells, f"{own['gpu_hours']:.1f}"))
    for label, floor in _bounds(bound):
        figures = (*_energy(floor.energy_wh, first), *([_whole(floor.carbon_g)] if carbon else []))
        rows.append((f"*{label}*", *figures, "", "", "", "", f"{floor.gpu_hours:.1f}"))
    return _lines(head, rows)


def _bounds(bound: Bound | None) -> list[tuple[str, Bound]]:
    both = (("clairvoyant bound", bound), ("the same, 99 % in time", None if bound is None else bound.with_tail))
    return [(label, own) for label, own in both if own is not None and own.energy_wh > 0.0]  # 0: short in all minutes


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _energy(energy_wh: float, first_wh: float) -> tuple[str, str]:
    return f"{energy_wh:,.0f}", f"{energy_wh / first_wh:.3f}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    return "-" if value is None else in_words(value)
