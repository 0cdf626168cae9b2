"""engine facts: published figures beside the engine model's, as text, Markdown or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from core.engine.facts import Comparison, Evaluation, Summary


def as_json(evaluations: Sequence[Evaluation], summaries: Sequence[Summary]) -> str:
    rows = [
        {
            "line": one.fact.line,
            "source": one.fact.source,
            "quantity": one.fact.quantity,
            "condition": one.fact.condition,
            "value": one.fact.value if one.fact.number is None else one.fact.number,
            "unit": one.fact.unit,
            "used": one.fact.used,
            "evaluated": one.prediction is not None,
            "prediction": one.prediction,
            "error": one.error,
            "kind": one.kind.value,
            "group": one.group,
            "note": one.note or None,
            "reason": one.reason or None,
        }
        for one in evaluations
    ]
    return json.dumps({"facts": rows, "sources": [asdict(one) for one in summaries]}, indent=1)


def as_markdown(evaluations: Sequence[Evaluation], summaries: Sequence[Summary]) -> str:
    """Writes two tables and the list of what is not evaluated: docs/fidelity.md holds this text."""
    sections = [
        "### By source",
        "",
        "| " + " | ".join(_SUMMARY_HEAD) + " |",
        "|---|" + "---:|" * (len(_SUMMARY_HEAD) - 1),
        *("| " + " | ".join(_summary_cells(one)) + " |" for one in summaries if one.evaluated),
        "",
        "### By fact",
        "",
        "| " + " | ".join(_FACT_HEAD) + " |",
        "|---|---|---|---:|---:|---:|---|",
        *("| " + " | ".join(_fact_cells(one)) + " |" for one in evaluations if one.prediction is not None),
        "",
        "### Not evaluated",
        "",
        *(f"- {_named(one)}: {one.reason}" for one in evaluations if one.prediction is None),
    ]
    return "\n".join(sections)


def as_text(evaluations: Sequence[Evaluation], summaries: Sequence[Summary]) -> str:
    done = [one for one in evaluations if one.prediction is not None]
    rest = [one for one in evaluations if one.prediction is None]
    lines = [*_columns(_FACT_HEAD, [_fact_cells(one) for one in done], left=3), ""]
    lines += [*_columns(_SUMMARY_HEAD, [_summary_cells(one) for one in summaries if one.evaluated], left=1), ""]
    lines.append(f"{len(done)} of {len(evaluations)} facts evaluated; not evaluated:")
    lines += [f"  line {one.fact.line}, {_named(one)}: {one.reason}" for one in rest]
    return "\n".join(lines)


_FACT_HEAD = ("source", "quantity", "condition", "published", "predicted", "error", "used for")
_SUMMARY_HEAD = ("source", "evaluated", "MAPE", "mean error", "worst", "choices exact", "mean regret")


def _named(one: Evaluation) -> str:
    return f"{one.fact.source}, {one.fact.quantity} ({one.fact.condition})"


def _fact_cells(one: Evaluation) -> tuple[str, ...]:
    fact = one.fact
    unit = "" if fact.unit == "config" else f" {fact.unit}"
    found = one.prediction if isinstance(one.prediction, str) else f"{one.prediction:.4g}"
    error = f"{one.error:+.1%}" if one.error is not None else ""
    if one.kind is Comparison.BOUND:
        error = one.note
    elif one.kind is Comparison.CHOICE:
        error = f"regret {one.error:.1%}"
    quantity = fact.quantity.partition(" (row scale")[0].partition(" (rel_error")[0]
    return fact.source, quantity, fact.condition, f"{fact.value}{unit}", str(found), error, fact.used


def _summary_cells(one: Summary) -> tuple[str, ...]:
    def share(value: float | None, sign: str = "") -> str:
        return "" if value is None else f"{value:{sign}.1%}"

    return (
        f"{one.source}{f': {one.group}' if one.group else ''}",
        f"{one.evaluated} of {one.facts}",
        share(one.mape),
        share(one.bias, "+"),
        share(one.worst, "+"),
        f"{one.choices_exact} of {one.choices}" if one.choices else "",
        share(one.mean_regret),
    )


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    widths = [max(len(row[n]) for row in (head, *rows)) for n in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if n < left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
