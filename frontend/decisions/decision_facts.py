"""A decision's JSON as facts and tables for people. Pure: it knows the house's names of units, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from core.types import Source
from frontend import formats

Clock = Callable[[float], str]
MAX_COLUMNS = 14
_AS_MUCH = 0.0005  # of a figure: what a difference in percent, to one decimal, shows as none
FIRST = ("name", "label")  # what a record is called: its first column
_REASONS = {
    "optimal": "the solver proved that no plan does better",
    "feasible": "the best plan found within the time limit",
    "heuristic": "found by the greedy fall-back",
    "infeasible": "no plan meets the constraints; the last one is kept",
    "no_change": "the present plan is already the best",
    "not_worth_it": "the saving does not pay for the change",
    "no_data": "an input is missing or stale; the last plan is kept",
}
_OF_CLOCKS = {
    "congested": "a latency threshold was crossed: clock up",
    "slack": "latencies are within their thresholds: clock down",
    "at_limit": "the clock is already at its end",
}
_OF_FLEETS = {
    "congested": "the fleet is too small for the load ahead: more capacity",
    "slack": "other instances carry the load ahead for less",
    "at_limit": "the load ahead needs more than may run",
    "grace": "less would do, and may not for long: nothing changes yet",
}


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    unit: str
    header: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Readable:
    facts: tuple[Fact, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True, slots=True)
class AlternativeRow:
    label: str
    chosen: bool
    result: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The alternatives that were weighed; columns without a known value are left out."""

    header: tuple[str, ...]
    rows: tuple[AlternativeRow, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    name: str
    predicted: str
    realised: str
    difference: str


def why(kind: str, reason: str) -> str:
    """Returns what the reason of a decision means; "" where its word says enough.

    Args:
        kind: The loop's that decided.
        reason: One of `core.types.Reason`.
    """
    own = _OF_CLOCKS if kind == "clock" else _OF_FLEETS
    return own.get(reason) or _REASONS.get(reason, "")


def readable(values: Mapping[str, Any], clock: Clock) -> Readable:
    """Scalars become facts, mappings and lists of records become tables, in the order they were written."""
    facts: list[Fact] = []
    tables: list[Table] = []
    for name, value in values.items():
        _add(name, value, clock, facts, tables)
    return Readable(tuple(facts), tuple(tables))


def _add(name: str, value: Any, clock: Clock, facts: list[Fact], tables: list[Table]) -> None:
    if isinstance(value, Mapping) and value:
        if all(_is_scalar(v) for v in value.values()):
            tables.append(_columns(name, value, clock))
        elif all(_is_series(v) for v in value.values()):
            tables.append(_series(name, value))
        elif all(isinstance(v, Mapping) for v in value.values()):
            _add_records(name, [{"name": key, **row} for key, row in value.items()], clock, tables)
        else:
            for inner, v in value.items():
                _add(f"{name}: {inner}", v, clock, facts, tables)
    elif _is_records(value):
        _add_records(name, value, clock, tables)
    else:
        facts.append(Fact(formats.unit_of(name)[0], scalar(name, value, clock)))


def _add_records(name: str, records: Sequence[Mapping[str, Any]], clock: Clock, tables: list[Table]) -> None:
    """Adds a table with a row for each record; records inside a record get tables of their own, named after it."""
    inner = {key for record in records for key, value in record.items() if _inner(value)}
    keys = list(dict.fromkeys(key for record in records for key in record if key not in inner))
    keys.sort(key=lambda key: key not in FIRST)
    if [key for key in keys if key not in FIRST]:
        tables.append(_records(name, keys[:MAX_COLUMNS], records, clock))
    for n, record in enumerate(records, start=1):
        label = next((str(record[key]) for key in FIRST if record.get(key)), str(n))
        for key in sorted(inner & set(record)):
            if found := _inner(record[key]):
                _add_records(f"{name}: {label}, {formats.words(key)}", found, clock, tables)


def _inner(value: object) -> Sequence[Mapping[str, Any]]:
    """Returns the records that a list is, or that a mapping has by their names; empty: the value is neither."""
    if isinstance(value, Mapping) and value and all(isinstance(row, Mapping) for row in value.values()):
        return [{"name": key, **row} for key, row in value.items()]
    return value if isinstance(value, (list, tuple)) and _is_records(value) else ()


def _records(name: str, keys: Sequence[str], records: Sequence[Mapping[str, Any]], clock: Clock) -> Table:
    numbers = {key: all(_is_number(record.get(key)) for record in records) for key in keys}
    header = tuple(Cell("" if key in FIRST else formats.unit_of(key)[0], numbers[key]) for key in keys)
    rows = tuple(tuple(Cell(scalar(key, record.get(key), clock), numbers[key]) for key in keys) for record in records)
    return Table(formats.words(name), "", header, rows)


def _columns(name: str, values: Mapping[str, Any], clock: Clock) -> Table:
    """Makes a table of two columns of a mapping of scalars. A unit in the mapping's name is that of all values."""
    title, unit = formats.unit_of(name)
    rows = tuple(
        (
            Cell(key if unit else formats.unit_of(key)[0]),
            Cell(scalar(name if unit else key, value, clock), _is_number(value)),
        )
        for key, value in values.items()
    )
    return Table(title, unit, (), rows)


def _series(name: str, values: Mapping[str, Sequence[Any]]) -> Table:
    """A mapping of lists over the coming steps: one row each, the unit said once."""
    title, unit = formats.unit_of(name)
    steps = max(len(series) for series in values.values())
    rows = tuple(
        (Cell(key), *(Cell(_bare(v), True) for v in series), *[Cell("")] * (steps - len(series)))
        for key, series in values.items()
    )
    return Table(title, unit, (Cell(""), *(Cell(f"step {n + 1}", True) for n in range(steps))), rows)


def scalar(name: str, value: object, clock: Clock) -> str:
    """Writes a value in the unit of its name; a name in `_at_s` is a moment. Nested values are written in a line."""
    if value is None or value == [] or value == {}:
        return formats.UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if name == "now_s" or name.endswith("_at_s"):
            return clock(float(value))
        if name.endswith(("_attainment", "_usage", "_share")):
            return formats.percent(float(value))
        return formats.quantity(float(value), formats.unit_of(name)[1])
    if isinstance(value, Mapping):
        return ", ".join(f"{formats.unit_of(key)[0]}: {scalar(key, v, clock)}" for key, v in value.items())
    if isinstance(value, (list, tuple)):
        unit = formats.unit_of(name)[1] if all(_is_number(v) for v in value) else ""
        return f"{', '.join(_bare(v) for v in value)}\u00a0{unit}".rstrip("\u00a0")
    return str(value)


def _bare(value: Any) -> str:
    if value is None:
        return formats.UNKNOWN
    if isinstance(value, (Mapping, list, tuple)):
        return scalar("", value, str)
    return formats.plain(float(value)) if _is_number(value) else str(value)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _is_scalar(value: object) -> bool:
    return not isinstance(value, (Mapping, list, tuple))


def _is_records(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _is_series(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(value) <= MAX_COLUMNS and all(_is_scalar(v) for v in value)


COLUMNS = {
    "power_w": "power",
    "energy_j": "energy",
    "carbon_gco2e": "carbon",
    "cost_usd": "cost",
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "source": "source",
}


def alternatives(records: Sequence[Mapping[str, Any]]) -> Alternatives:
    """Makes the table of stored alternatives (`core.types.Alternative`), the chosen one first."""
    known = [name for name in COLUMNS if any(record.get(name) is not None for record in records)]
    rows = tuple(
        AlternativeRow(
            label=str(record.get("label", "")),
            chosen=bool(record.get("chosen")),
            result=_result(record),
            cells=tuple(scalar(name, record.get(name), str) for name in known),
        )
        for record in sorted(records, key=lambda r: not r.get("chosen"))
    )
    return Alternatives(tuple(COLUMNS[name] for name in known), rows)


COSTS = {"carbon": ("carbon_gco2e", "carbon"), "energy": ("energy_j", "energy"), "cost": ("cost_usd", "money")}


def why_not_cheaper(records: Sequence[Mapping[str, Any]], objective: str = "") -> str:
    """Says which alternatives would have taken less than the chosen one; empty: there is nothing to compare.

    By the decision's objective where the chosen one's figure for it is known, else by carbon, energy or power.
    """
    chosen = next((record for record in records if record.get("chosen")), None)
    others = [record for record in records if not record.get("chosen")]
    if chosen is None or not others:
        return ""
    named = [COSTS[objective]] if objective in COSTS else []
    for name, word in (*named, *COSTS.values(), ("power_w", "power")):
        own = chosen.get(name)
        known = [record for record in others if record.get(name) is not None]
        if own and known:
            return _weighed(known, name, word, float(own))
    return ""


def _weighed(known: Sequence[Mapping[str, Any]], name: str, word: str, own: float) -> str:
    least = min(known, key=lambda record: float(record[name]))
    label, share = least.get("label", "another"), float(least[name]) / own - 1.0
    if abs(share) < _AS_MUCH:
        return f"Nothing that was weighed takes less {word}: the next best, {label}, takes as much."
    if share >= 0:
        return (
            f"Nothing that was weighed takes less {word}: the next best, {label}, takes {formats.percent(share)} more."
        )
    less = f"{label} would take {formats.percent(-share)} less {word}"
    if not least.get("feasible", True):
        return f"{less}, but it was ruled out: {least.get('failed') or 'the record does not say why'}."
    return f"{less} and was feasible; the loop weighed something else higher (see the inputs)."


def _result(record: Mapping[str, Any]) -> str:
    if record.get("chosen"):
        return "chosen"
    if record.get("feasible", True):
        return "feasible"
    return f"ruled out: {record.get('failed') or 'not said'}"


def comparisons(
    predicted: Mapping[str, Any], realised: Mapping[str, Any] | None, clock: Clock
) -> tuple[Comparison, ...]:
    """Compares predicted with realised figures by name, with the difference in percent of the prediction.

    A predicted power is compared with the mean power that was metered. `span` says how, and over what time.
    """
    came = realised or {}
    predicted = {"mean_power_w" if name == "power_w" else name: value for name, value in predicted.items()}
    names = [
        name
        for name in dict.fromkeys((*predicted, *came))
        if name not in ("source", "from", "to") and _is_scalar(predicted.get(name)) and _is_scalar(came.get(name))
    ]
    return tuple(
        Comparison(
            " ".join(formats.unit_of(name)[:1]),
            scalar(name, predicted.get(name), clock),
            scalar(name, came.get(name), clock),
            _difference(predicted.get(name), came.get(name)),
        )
        for name in names
    )


def span(
    predicted: Mapping[str, Any], realised: Mapping[str, Any] | None, clock: Clock, inputs: Mapping[str, Any] | None
) -> str:
    """Says where the predicted figures come from and of when, and over which time the realised ones were taken."""
    parts = [f"Predicted: {predicted['source']}"] if predicted.get("source") else []
    if predicted.get("source") == Source.DATA_SHEET:
        parts[0] += ", which leaves wide margins: nobody has measured a GPU type of the plan"
    if times := sorted(_measured_at_s(inputs or {})):
        newest = "" if times[-1] == times[0] else f" to {clock(times[-1])}"
        parts.append(f"Measured figures are of {clock(times[0])}{newest}")
    if realised and realised.get("from") and realised.get("to"):
        start, end = (clock(datetime.fromisoformat(realised[name]).timestamp()) for name in ("from", "to"))
        parts.append(f"Realised: {start} to {end}")
    return ". ".join(parts)


def _measured_at_s(value: object) -> Iterator[float]:
    """Yields when each measured figure among the inputs was measured, however deep it stands."""
    if isinstance(value, Mapping):
        own = value.get("measured_at_s")
        if isinstance(own, (int, float)):
            yield float(own)
        for inner in value.values():
            yield from _measured_at_s(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _measured_at_s(inner)


def _difference(predicted: object, realised: object) -> str:
    if not isinstance(predicted, (int, float)) or not isinstance(realised, (int, float)) or not predicted:
        return ""
    return f"{(realised / predicted - 1) * 100:+.1f}\u00a0%"


def command(value: Mapping[str, Any]) -> str:
    """Writes a command as one line: its name, whom it is for, then what it sets."""
    name = str(value.get("type", "command"))
    keys = sorted((key for key in value if key != "type"), key=lambda key: key not in ("pool", "instance"))
    return f"{name}: " + "; ".join(f"{formats.unit_of(key)[0]} {scalar(key, value[key], str)}" for key in keys)
