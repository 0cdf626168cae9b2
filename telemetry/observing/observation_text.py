"""An observation for people: tables on a terminal, which a page of HTML can have, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from .observation import Attainment, Figure, Observation, ObservedTarget, PolicySaving, Savings

_UNKNOWN = "-"
_BY_OBJECTIVE = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
_UNIT_SUFFIX = re.compile(r"_(?:wh|j|g)$")
_METERED_AS_MODELLED = 0.15  # by which the model may be off the meter without a word


def print_observation(found: Observation, console: Console) -> None:
    """Writes an observation to a console, section by section."""
    span = found.span
    began, ended = (datetime.fromtimestamp(at_s, UTC) for at_s in (span.from_s, span.to_s))
    early = ", ended early" if span.ended_early else ""
    console.print(f"[bold]Observed[/] {began:%Y-%m-%d %H:%M:%S} to {ended:%H:%M:%S} UTC, {span.length_s:.0f} s{early}")
    for title, part in _sections(found):
        console.print(f"\n[bold]{title}[/]")
        console.print(Padding(part, (0, 0, 0, 2)))


def _sections(found: Observation) -> Iterator[tuple[str, RenderableType]]:
    yield "Pages", _targets(found.targets)
    yield "Figures", _figures(found.figures)
    yield "Objectives", _attainments(found.attainment)
    yield "Tenants", _tenants(found) if found.tenants else escape(found.tenants_note)
    yield "Policies on this traffic (modelled)", _savings(found.savings)
    if below := _below(found.savings):
        yield "About the policies", escape("\n".join(below))
    if found.notes:
        yield "Notes", escape("\n".join(found.notes))


def _table(*columns: str, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for n, title in enumerate(columns):
        table.add_column(title, justify="left" if n < left else "right", overflow="fold")
    return table


def _targets(targets: tuple[ObservedTarget, ...]) -> Table:
    table = _table("page", "engine", "model", "scrapes", "failed", "resets", "remarks", left=3)
    table.columns[-1].justify = "left"
    for own in targets:
        remarks = [f"gap of {gap.to_s - gap.from_s:.0f} s: {gap.reason}" for gap in own.gaps[:2]]
        remarks += [f"and {len(own.gaps) - 2} more gaps"] if len(own.gaps) > 2 else []
        remarks += [f"lacks {', '.join(own.missing)}"] if own.missing else []
        cells = own.name, own.engine or own.kind, own.model or _UNKNOWN
        counts = own.scrapes, own.failed, own.resets
        table.add_row(*map(escape, cells), *map(str, counts), escape("; ".join(remarks)))
    return table


def _figures(figures: dict[str, Figure]) -> Table:
    table = _table("figure", "value", "unit", "from", "")
    for column in table.columns[2:]:
        column.justify = "left"
    for name, own in figures.items():
        value = _UNKNOWN if own.value is None else _number(own.value)
        table.add_row(
            _UNIT_SUFFIX.sub("", name).replace("_", " "), value, escape(own.unit), own.source.value, escape(own.note)
        )
    return table


def _attainments(found: tuple[Attainment, ...]) -> Table:
    table = _table("objective", "limit s", "attainment", "of", "")
    table.columns[-1].justify = "left"
    for own in found:
        note = "; ".join(filter(None, ("not given: what 99 % keep now" if own.derived and own.of else "", own.note)))
        limit = _UNKNOWN if own.limit_s is None else f"{own.limit_s:g}"
        table.add_row(_BY_OBJECTIVE[own.objective], limit, _range(own), f"{own.of:,.0f} {own.counts}", escape(note))
    return table


def _range(own: Attainment) -> str:
    if own.least is None or own.most is None:
        return _UNKNOWN
    ends = [f"{100.0 * share:.2f}" for share in (own.least, own.most)]
    return f"{ends[0]} %" if own.least == own.most else f"{ends[0]} to {ends[1]} %"


def _tenants(found: Observation) -> Table:
    money = f"electricity, {found.currency}" if found.currency else "electricity"
    table = _table("tenant", "requests", "prompt tokens", "output tokens", "serving energy, Wh", "gCO2e", money)
    for own in found.tenants:
        counts = own.requests, own.prompt_tokens, own.output_tokens, own.energy_j / 3600.0
        unknown = (_UNKNOWN if value is None else _number(value) for value in (own.carbon_g, own.cost))
        table.add_row(escape(own.tenant), *map(_number, counts), *unknown)
    return table


def _savings(found: Savings) -> RenderableType:
    if found.baseline_wh is None:
        return escape(f"none: {found.why_not}")
    table = _table("policy", "energy, Wh", "saved", "carbon saved", "GPU hours saved", "in time")
    before = next((own.baseline_attainment for own in found.policies), None)
    table.add_row("the fleet as it is", _number(found.baseline_wh), "", "", "", _percent(before))
    for own in found.policies:
        table.add_row(own.policy, _number(own.energy_wh), *_saved(own), _percent(own.slo_attainment))
    return table


def _saved(own: PolicySaving) -> tuple[str, str, str]:
    mark = "" if own.keeps_objectives else " †"
    return _percent(own.energy_saved) + mark, _percent(own.carbon_saved), _percent(own.gpu_hours_saved)


def _below(found: Savings) -> list[str]:
    """Returns what the table of policies rests on."""
    said = list(found.notes)
    if found.baseline_wh is not None:
        drawn = f"{found.requests:,} requests were drawn from the recorded rates and lengths, seed {found.seed}"
        said.insert(0, f"{drawn}. GPUs without an engine stay powered and draw their idle power.")
        if found.metered_wh:
            ratio = found.baseline_wh / found.metered_wh
            said.insert(1, f"The simulator has {ratio:.2f} times the metered energy for the fleet as it is.")
            if abs(ratio - 1.0) > _METERED_AS_MODELLED:
                said.insert(2, "That is far off: take the shares that are saved as a hint, and prove them by a trial.")
        if any(not own.keeps_objectives for own in found.policies):
            said.append("† fewer than 99 % of requests are in time, and fewer than in the fleet as it is.")
    by_reason: dict[str, list[str]] = {}
    for name, why in found.left_out.items():
        by_reason.setdefault(why, []).append(name)
    return said + [f"{', '.join(names)}: {why}" for why, names in by_reason.items()]


def _percent(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{100.0 * share:.1f} %"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000.0 or value == round(value) else f"{value:.4g}"
