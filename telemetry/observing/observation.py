"""An observation as values: every figure says where it is from, and what is not known is null."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

SCHEMA = "greenserve.observation/1"


class FigureSource(StrEnum):
    """The origin of a figure."""

    METER = "meter"  # energy counters of GPUs
    POWER = "power"  # readings of power, summed over time
    DECLARED = "declared"  # watts that whoever asked has declared
    COUNTER = "counter"  # counters of engines
    HISTOGRAM = "histogram"  # histograms of engines
    COMPUTED = "computed"  # from metered figures and what was given
    MODEL = "model"  # the simulator's
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Figure:
    """A value in `unit`; None: it is not known, and `note` says why and what to do."""

    value: float | None
    unit: str
    source: FigureSource
    note: str = ""

    @classmethod
    def missing(cls, unit: str, note: str) -> Figure:
        return cls(None, unit, FigureSource.MISSING, note)


@dataclass(frozen=True, slots=True)
class ObservedGap:
    from_s: float
    to_s: float
    reason: str
    counted: bool


@dataclass(frozen=True, slots=True)
class ObservedTarget:
    """A page that was read. `resets`: how often its process was another one. `missing`: metrics that it lacks."""

    name: str
    kind: str
    engine: str | None
    model: str | None
    scrapes: int
    failed: int
    resets: int
    gaps: tuple[ObservedGap, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attainment:
    """The share of requests within an objective: `least` to `most`, equal where it is the end of a bucket.

    `counts`: requests, or gaps between tokens, of which it is the share. `derived`: nobody gave the objective, it is
    what the fleet keeps for 99 % of requests.
    """

    objective: str
    limit_s: float | None
    derived: bool
    least: float | None
    most: float | None
    of: float
    counts: str
    source: FigureSource
    note: str = ""


@dataclass(frozen=True, slots=True)
class TenantShare:
    """A tenant's part: tokens that engines counted for it, and the serving energy that its tokens took."""

    tenant: str
    requests: float
    prompt_tokens: float
    output_tokens: float
    energy_j: float
    carbon_g: float | None
    cost: float | None


@dataclass(frozen=True, slots=True)
class PolicySaving:
    """A policy's use beside that of the fleet as it is; all modelled. Shares are of the baseline's figure.

    `keeps_objectives`: 99 % of requests are in time, or as many as in the fleet as it is where that has fewer.
    """

    policy: str
    energy_wh: float
    energy_saved: float
    carbon_g: float | None
    carbon_saved: float | None
    gpu_hours: float
    gpu_hours_saved: float
    slo_attainment: float | None
    baseline_attainment: float | None
    keeps_objectives: bool


@dataclass(frozen=True, slots=True)
class Savings:
    """Policies on the recorded traffic in the simulator. `why_not`: why there are none, and what to do.

    `metered_wh`: what the meters say of the fleet that `baseline_wh` models, for the same time.
    """

    why_not: str = ""
    baseline_wh: float | None = None
    metered_wh: float | None = None
    requests: int = 0
    seed: int = 0
    policies: tuple[PolicySaving, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """The time that was observed, Unix seconds. `asked_s`: as long as asked. `source`: scrapes, or a Prometheus."""

    from_s: float
    to_s: float
    asked_s: float
    source: str
    ended_early: bool

    @property
    def length_s(self) -> float:
        return self.to_s - self.from_s


@dataclass(frozen=True, slots=True)
class Observation:
    """The document that `greenserve observe --json` writes. `figures` by name; `tenants_note`: why there are none."""

    span: Span
    targets: tuple[ObservedTarget, ...]
    figures: dict[str, Figure]
    attainment: tuple[Attainment, ...]
    tenants: tuple[TenantShare, ...]
    tenants_note: str
    savings: Savings
    notes: tuple[str, ...]
    currency: str | None = None
    schema: str = SCHEMA


def as_json(found: Observation) -> bytes:
    """Returns the document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of the document."""
    return msgspec.json.schema(Observation)
