"""Measured profiles of an instance: reading and checking them.

A profile is a table of iterations timed and metered on a node: model, gpu, tp, engine, mhz, prefill_tokens (one prefill
without cached tokens; 0: none), batch (decoding sequences), context_tokens (sum of their contexts, K), t_s, watts (of
the instance). For each prefill size every clock must have every batch, so that there is something to interpolate
between; contexts may differ. `profiled_engine` predicts from it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from scheduler.core.engine_model import UnknownConfiguration, engine_model

_NAMES = ("model", "gpu", "engine")
_COUNTS = ("tp", "prefill_tokens", "batch")
_NUMBERS = ("mhz", "context_tokens", "t_s", "watts")
_MOST = 1e9  # of anything: tokens, MHz, seconds, watts
_POSITIVE = ("tp", "mhz", "t_s", "watts")


@dataclass(frozen=True, slots=True)
class Margins:
    """How far a prediction may be off, as a share; `clock` is for choosing among clocks by predicted energy."""

    time: float
    power: float
    clock: float


def modelled_margins(gpu: str) -> Margins:
    """Of the closed form, until a node has been profiled. H100 clock scaling rests on one paper's tables."""
    return Margins(time=0.10, power=0.10, clock=0.30 if gpu.startswith("H100") else 0.10)


class ProfileError(ValueError):
    """A profile that cannot be used; says which row and field."""

    def __init__(self, row: int | None, field_name: str, reason: str) -> None:
        where = f"row {row}: " if row is not None else ""
        super().__init__(f"{where}{field_name}: {reason}")
        self.row = row
        self.field_name = field_name


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One measured iteration of a configuration."""

    prefill_tokens: int
    mhz: float
    batch: int
    context_tokens: float
    t_s: float
    watts: float

    @property
    def curve(self) -> tuple[int, float, int]:
        """Prefill, clock and batch: points that share them differ in context only."""
        return self.prefill_tokens, self.mhz, self.batch


@dataclass(frozen=True, slots=True)
class Profile:
    """All points of one configuration, sorted. `version` is a hash of what was measured: same content, same version."""

    model: str
    gpu: str
    tp: int
    engine: str
    points: tuple[Point, ...]
    version: str = field(init=False)

    def __post_init__(self) -> None:
        points = tuple(sorted(self.points))
        object.__setattr__(self, "points", points)
        content = [[self.model, self.gpu, self.tp, self.engine]]
        content += [[getattr(point, item.name) for item in fields(Point)] for point in points]
        digest = hashlib.sha256(json.dumps(content, allow_nan=False).encode()).hexdigest()
        object.__setattr__(self, "version", digest)


def load_profiles(path: Path) -> tuple[Profile, ...]:
    """Reads a .csv or .json file (a list of objects), one profile for each configuration in it.

    Rows are numbered from 1, the header of a CSV not counted. Raises ProfileError; OSError when it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ProfileError(None, "file", "not UTF-8 text") from None
    if path.suffix.lower() != ".json":
        return profiles_of(csv.DictReader(io.StringIO(text, newline="")))
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProfileError(None, "file", f"not JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ProfileError(None, "file", "a list of objects is needed")
    return profiles_of(rows)


def profiles_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Profile, ...]:
    """Checks rows and sorts them into profiles. Raises ProfileError."""
    found: dict[tuple[str, str, int, str], dict[tuple[tuple[int, float, int], float], Point]] = {}
    for number, row in enumerate(rows, 1):
        names = {name: _name(number, row, name) for name in _NAMES}
        values = {name: _number(number, row, name) for name in (*_COUNTS, *_NUMBERS)}
        key = (names["model"], names["gpu"], int(values["tp"]), names["engine"])
        try:
            gpu = engine_model(*key).gpu_params
        except UnknownConfiguration as error:
            raise ProfileError(number, error.field_name, str(error)) from None
        if gpu.clamp_mhz(values["mhz"]) != values["mhz"]:
            reason = f"{values['mhz']:g} is outside the {gpu.name}'s {gpu.f_min:g} to {gpu.f_max:g} MHz"
            raise ProfileError(number, "mhz", reason)
        point = Point(
            int(values["prefill_tokens"]),
            values["mhz"],
            int(values["batch"]),
            values["context_tokens"],
            values["t_s"],
            values["watts"],
        )
        _check(number, point)
        points = found.setdefault(key, {})
        if (point.curve, point.context_tokens) in points:
            raise ProfileError(number, "context_tokens", "the same clock, prefill, batch and context again")
        points[point.curve, point.context_tokens] = point
    if not found:
        raise ProfileError(None, "file", "no measurements in it")
    for key, points in found.items():
        _check_grid(key, tuple(points.values()))
    return tuple(Profile(*key, points=tuple(points.values())) for key, points in found.items())


def _name(number: int, row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ProfileError(number, name, "missing")
    return value.strip()


def _number(number: int, row: Mapping[str, Any], name: str) -> float:
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
    if found > _MOST:
        raise ProfileError(number, name, f"{found:g} is beyond reason")
    if name in _COUNTS and found != int(found):
        raise ProfileError(number, name, f"{found:g} is not a whole number")
    return found


def _check(number: int, point: Point) -> None:
    if point.prefill_tokens == 0 and point.batch == 0:
        raise ProfileError(number, "batch", "neither a prefill nor a decoding sequence")
    if point.batch == 0 and point.context_tokens > 0.0:
        raise ProfileError(number, "context_tokens", "contexts without a decoding sequence")


def _check_grid(key: tuple[str, str, int, str], points: Sequence[Point]) -> None:
    """For each prefill size, every clock must have every batch."""
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
