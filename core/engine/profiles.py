"""Profiles of an instance: reading, checking and writing them.

A profile is a table of timed and metered iterations: model, gpu, tp, engine, mhz, prefill_tokens (one prefill without
cached tokens; 0: none), batch (decoding sequences), context_tokens (sum of their contexts, K), t_s, watts (of the
instance; empty in all rows of a configuration that was only timed). For each prefill size every clock must have every
batch, so that there is something to interpolate between; contexts may differ.

Optional columns: t_spread and watts_spread (of repeats, as a share of the value), source (measured, the default, or
published: taken by others, on other machines), origin (in words, who took it) and measured_at (ISO 8601: when; of a
configuration the newest counts). `profiled_engine` predicts from it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from core import bounds
from core.cells import original, write_csv
from core.engine.engine_model import UnknownConfiguration, engine_model
from core.engine.engine_params import fitted_engines
from core.types import Source

COLUMNS = (
    "model",
    "gpu",
    "tp",
    "engine",
    "mhz",
    "prefill_tokens",
    "batch",
    "context_tokens",
    "t_s",
    "watts",
    "t_spread",
    "watts_spread",
    "source",
    "origin",
    "measured_at",
)
_NAMES = ("model", "gpu", "engine")
_COUNTS = ("tp", "prefill_tokens", "batch", "iterations")
_OPTIONAL = ("watts", "t_spread", "watts_spread")
UNCATALOGUED = "CPU"  # a machine without a GPU: no closed form knows it, and its profile stands by itself
_MOST = 1e9  # of what has no bound by its name
_POSITIVE = ("tp", "mhz", "t_s", "watts", "energy_j", "iterations")


@dataclass(frozen=True, slots=True)
class Margins:
    """The shares by which a prediction may be off; `clock` is for choosing among clocks by predicted energy."""

    time: float
    power: float
    clock: float


def modelled_margins(gpu: str, engine: str) -> Margins:
    """Returns the margins of the closed form, until a node has been profiled.

    H100 clock scaling rests on one paper's tables. Of a type known by its data sheet nothing was measured with the
    engine.
    """
    if engine not in fitted_engines(gpu):
        return Margins(time=0.25, power=0.25, clock=0.40)
    return Margins(time=0.10, power=0.10, clock=0.30 if gpu.startswith("H100") else 0.10)


class ProfileError(ValueError):
    """A profile that cannot be used; says which row and field."""

    def __init__(self, row: int | None, field_name: str, reason: str) -> None:
        where = f"row {row}: " if row is not None else ""
        super().__init__(f"{where}{field_name}: {reason}")
        self.row, self.reason = row, reason
        self.field_name = field_name


class Shape(NamedTuple):
    """The work of a run, whatever it took."""

    prefill_tokens: int
    mhz: float
    batch: int
    context_tokens: float


@dataclass(frozen=True, slots=True)
class Point:
    """One measured iteration of a configuration. Spreads are shares of the value; None: measured once."""

    prefill_tokens: int
    mhz: float
    batch: int
    context_tokens: float
    t_s: float
    watts: float | None  # None: timed only
    t_spread: float | None = None
    watts_spread: float | None = None

    @property
    def curve(self) -> tuple[int, float, int]:
        """Prefill, clock and batch: points that share them differ in context only."""
        return self.prefill_tokens, self.mhz, self.batch


@dataclass(frozen=True, slots=True)
class Profile:
    """All points of one configuration, sorted. `version` is a hash of the content: same content, same version.

    `measured_at_s`: Unix seconds; None: not known.
    """

    model: str
    gpu: str
    tp: int
    engine: str
    points: tuple[Point, ...]
    source: Source = Source.MEASURED
    origin: str = ""
    measured_at_s: float | None = field(default=None, compare=False)
    version: str = field(init=False)

    def __post_init__(self) -> None:
        points = tuple(sorted(self.points, key=lambda point: (*point.curve, point.context_tokens)))
        object.__setattr__(self, "points", points)
        content: list[list[Any]] = [[self.model, self.gpu, self.tp, self.engine, self.source, self.origin]]
        if self.measured_at_s is not None:
            content[0].append(self.measured_at_s)
        content += [[getattr(point, item.name) for item in fields(Point)] for point in points]
        digest = hashlib.sha256(json.dumps(content, allow_nan=False).encode()).hexdigest()
        object.__setattr__(self, "version", digest)

    @property
    def metered(self) -> bool:
        """True where its power is known (then of every point)."""
        return self.points[0].watts is not None

    @property
    def measured_at(self) -> str | None:
        """The time when it was measured, as ISO 8601 in UTC."""
        return None if self.measured_at_s is None else datetime.fromtimestamp(self.measured_at_s, UTC).isoformat()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields its points as rows of COLUMNS; `profiles_of` makes the same profile of them."""
        for point in self.points:
            yield {name: getattr(point if hasattr(point, name) else self, name) for name in COLUMNS}


def load_profiles(path: Path) -> tuple[Profile, ...]:
    """Reads a .csv or .json file, one profile for each configuration in it. Raises ProfileError and OSError."""
    return profiles_of(read_rows(path))


def read_rows(path: Path) -> Iterable[Mapping[str, Any]]:
    """Reads the rows of a .csv or .json file (a list of objects).

    Rows are numbered from 1, the header of a CSV not counted. Raises ProfileError; OSError when it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ProfileError(None, "file", "not UTF-8 text") from None
    return rows_of_json(text) if path.suffix.lower() == ".json" else rows_of_csv(text)


def rows_of_csv(text: str) -> Iterable[Mapping[str, Any]]:
    """Reads the rows of a CSV's text, whose first line names the columns."""
    table = csv.DictReader(io.StringIO(text, newline=""))
    return ({name: original(cell) if isinstance(cell, str) else cell for name, cell in row.items()} for row in table)


def rows_of_json(text: str) -> Iterable[Mapping[str, Any]]:
    """Reads a list of objects. Raises ProfileError."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProfileError(None, "file", f"not JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ProfileError(None, "file", "a list of objects is needed")
    return rows


def write_profile(path: Path, *profiles: Profile) -> None:
    """Writes what `load_profiles` reads: JSON when the name ends so, else CSV. Raises OSError."""
    if path.suffix.lower() == ".json":
        lines = ",\n".join(json.dumps(row) for profile in profiles for row in json_rows(profile))
        path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        write_csv(file, COLUMNS, table(*profiles))


def table(*profiles: Profile) -> Iterator[list[Any]]:
    """Yields the points as cells of COLUMNS."""
    return ([row[name] for name in COLUMNS] for profile in profiles for row in profile.rows())


def json_rows(profile: Profile) -> list[dict[str, Any]]:
    """Returns the points as JSON has them: without what is not known."""
    return [{name: value for name, value in row.items() if value is not None} for row in profile.rows()]


@dataclass(slots=True)
class _Found:
    """The points read of one configuration so far."""

    source: Source
    origin: str
    points: dict[tuple[tuple[int, float, int], float], Point] = field(default_factory=dict)
    measured_at_s: float | None = None  # of its rows' the newest
    unmetered_row: int | None = None  # the first

    def add(self, number: int, source: Source, origin: str, point: Point) -> None:
        if (source, origin) != (self.source, self.origin):
            name = "origin" if source is self.source else "source"
            raise ProfileError(number, name, "another than in the rows before of the same configuration")
        if (point.curve, point.context_tokens) in self.points:
            raise ProfileError(number, "context_tokens", "the same clock, prefill, batch and context again")
        if point.watts is None and self.unmetered_row is None:
            self.unmetered_row = number
        self.points[point.curve, point.context_tokens] = point

    def profile(self, key: tuple[str, str, int, str]) -> Profile:
        points = tuple(self.points.values())
        if self.unmetered_row is not None and any(point.watts is not None for point in points):
            raise ProfileError(self.unmetered_row, "watts", "missing, though other rows of the configuration have it")
        check_grid(key, points)
        return Profile(*key, points=points, source=self.source, origin=self.origin, measured_at_s=self.measured_at_s)


def profiles_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Profile, ...]:
    """Checks rows and sorts them into profiles. Raises ProfileError."""
    found: dict[tuple[str, str, int, str], _Found] = {}
    for number, row in enumerate(rows, 1):
        names = {name: read_name(number, row, name) for name in _NAMES}
        key = (names["model"], names["gpu"], int(read_number(number, row, "tp")), names["engine"])
        source, origin = _source(number, row), str(row.get("origin") or "").strip()
        shape, t_s = read_shape(number, row, key), read_number(number, row, "t_s")
        watts, *spreads = (read_number(number, row, name) if given(row, name) else None for name in _OPTIONAL)
        point = Point(*shape, t_s, watts, *spreads)
        one = found.setdefault(key, _Found(source, origin))
        one.add(number, source, origin, point)
        one.measured_at_s = _newest(one.measured_at_s, _measured_at_s(number, row))
    if not found:
        raise ProfileError(None, "file", "no measurements in it")
    return tuple(one.profile(key) for key, one in found.items())


def read_shape(number: int, row: Mapping[str, Any], key: tuple[str, str, int, str]) -> Shape:
    """Reads the work that a row says was run on a configuration, and checks it. Raises ProfileError."""
    values = {name: read_number(number, row, name) for name in ("mhz", "prefill_tokens", "batch", "context_tokens")}
    if key[1] != UNCATALOGUED:
        _check_clock(number, values["mhz"], key)
    if values["prefill_tokens"] == 0 and values["batch"] == 0:
        raise ProfileError(number, "batch", "neither a prefill nor a decoding sequence")
    if values["batch"] == 0 and values["context_tokens"] > 0.0:
        raise ProfileError(number, "context_tokens", "contexts without a decoding sequence")
    return Shape(int(values["prefill_tokens"]), values["mhz"], int(values["batch"]), values["context_tokens"])


def _check_clock(number: int, mhz: float, key: tuple[str, str, int, str]) -> None:
    try:
        gpu = engine_model(*key).gpu_params
    except UnknownConfiguration as error:
        raise ProfileError(number, error.field_name, str(error)) from None
    if gpu.clamp_mhz(mhz) != mhz:
        reason = f"{mhz:g} is outside the {gpu.name}'s {gpu.f_min:g} to {gpu.f_max:g} MHz"
        raise ProfileError(number, "mhz", reason)


def given(row: Mapping[str, Any], name: str) -> bool:
    """Says whether a row has a value for it."""
    return row.get(name) not in (None, "")


def _source(number: int, row: Mapping[str, Any]) -> Source:
    """Reads the source, measured or published; what is interpolated or modelled is no measurement."""
    value = str(row.get("source") or Source.MEASURED).strip()
    if value not in (Source.MEASURED, Source.PUBLISHED):
        raise ProfileError(number, "source", f"'{value}' is neither measured nor published")
    return Source(value)


def _measured_at_s(number: int, row: Mapping[str, Any]) -> float | None:
    """Reads when a row was measured, in Unix seconds; a time without a zone is UTC."""
    if not given(row, "measured_at"):
        return None
    value = row["measured_at"]
    try:
        found = datetime.fromisoformat(value.strip() if isinstance(value, str) else "")
    except ValueError:
        reason = f"{value!r} is no time of ISO 8601, such as 2026-11-02T08:30:00Z"
        raise ProfileError(number, "measured_at", reason) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _newest(one: float | None, other: float | None) -> float | None:
    return max((at_s for at_s in (one, other) if at_s is not None), default=None)


def read_name(number: int, row: Mapping[str, Any], name: str) -> str:
    """Reads a text of a row. Raises ProfileError."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ProfileError(number, name, "missing")
    return value.strip()


def read_number(number: int, row: Mapping[str, Any], name: str, most: float | None = None) -> float:
    """Reads a number of a row, finite and not negative, above 0 and whole where it must be. Raises ProfileError.

    `most` None: what a quantity of this name can be.
    """
    bound = bounds.of(name)
    most = most if most is not None else bound.most if bound is not None else _MOST
    value = row.get(name)
    if value is None or value == "":
        raise ProfileError(number, name, "missing")
    try:
        if isinstance(value, bool):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ProfileError(number, name, f"{value!r} is not a number") from None
    if not math.isfinite(found):
        raise ProfileError(number, name, f"{found} is not a finite number")
    if found < 0.0 or (found == 0.0 and name in _POSITIVE):
        raise ProfileError(number, name, f"{found:g} is {'negative' if found < 0 else 'not above 0'}")
    if found > most:
        raise ProfileError(number, name, f"{found:g} is beyond reason: at most {most:,g}")
    if name in _COUNTS and found != int(found):
        raise ProfileError(number, name, f"{found:g} is not a whole number")
    return found


def check_grid(key: tuple[str, str, int, str], points: Sequence[Point]) -> None:
    """For each prefill size, every clock must have every batch. Raises ProfileError."""
    have = {point.curve for point in points}
    for prefill in sorted({point.prefill_tokens for point in points}):
        clocks = sorted({mhz for size, mhz, _ in have if size == prefill})
        batches = sorted({batch for size, _, batch in have if size == prefill})
        for mhz in clocks:
            for batch in batches:
                if (prefill, mhz, batch) not in have:
                    model, gpu, tp, engine = key
                    raise ProfileError(
                        None,
                        "batch",
                        f"a hole: {model} on {tp} x {gpu} ({engine}), prefill_tokens {prefill}: "
                        f"batch {batch} is not measured at {mhz:g} MHz",
                    )
