"""The dashboard's figures as plain values: time grids with one number or None a bucket. No Django here.

Times are Unix seconds. None is a gap: a meter was silent, a feed had nothing, nobody asked for anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

INTERVAL_S = 10.0  # the energy ledger's intervals; no bucket is finer, so none is empty for want of resolution
POINTS = 180


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A span of time cut into buckets that are aligned to the epoch, so that points stay put as time goes on."""

    start_s: float
    end_s: float
    bucket_s: float

    @classmethod
    def last(cls, range_s: float, now_s: float, points: int = POINTS) -> TimeRange:
        """Returns the last `range_s` seconds in at most about `points` buckets of whole ledger intervals.

        Wider ones are of whole minutes, hours or days, so that sums over these can be read instead.
        """
        step_s = next(
            (step_s for step_s in (86_400.0, 3_600.0, 600.0, 60.0) if range_s / points > step_s / 2), INTERVAL_S
        )
        bucket_s = step_s * max(1, math.ceil(range_s / points / step_s))
        return cls(math.floor((now_s - range_s) / bucket_s) * bucket_s, now_s, bucket_s)

    def coarser(self, step_s: float) -> TimeRange:
        """Returns the same span in buckets that are whole multiples of `step_s`, at least as wide as now."""
        bucket_s = step_s * math.ceil(self.bucket_s / step_s)
        return TimeRange(math.floor(self.start_s / bucket_s) * bucket_s, self.end_s, bucket_s)

    @property
    def count(self) -> int:
        return math.ceil((self.end_s - self.start_s) / self.bucket_s)

    @property
    def starts_s(self) -> tuple[float, ...]:
        return tuple(self.start_s + i * self.bucket_s for i in range(self.count))

    @property
    def ends_s(self) -> tuple[float, ...]:
        return tuple(self.start_s + (i + 1) * self.bucket_s for i in range(self.count))

    @property
    def middles_s(self) -> tuple[float, ...]:
        return tuple(self.start_s + (i + 0.5) * self.bucket_s for i in range(self.count))


Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class SitePower:
    """Mean power of a site in each bucket, metered at its GPUs (no PUE), in watts.

    `in_use_w` is serving, starting and draining, and what nobody saw the purpose of; `idle_w` is powered with nothing
    to do. `silent` marks buckets whose samples were missing: nothing metered, or only a counter's jump across a gap.
    `colour` is the site's own; None: these are the `together` sites that the others are added up to.
    """

    site: str
    label: str
    colour: int | None
    in_use_w: Values
    idle_w: Values
    silent: tuple[bool, ...]
    together: int = 1


@dataclass(frozen=True, slots=True)
class PowerFrame:
    time_range: TimeRange
    sites: tuple[SitePower, ...]
    cap_w: float | None = None  # of all sites together; None unless each has one
    metered_until_s: float | None = None


@dataclass(frozen=True, slots=True)
class IntensityStep:
    """Intensity over [start, end); `issued_at_s` is when a forecast was made."""

    start_s: float
    end_s: float
    g_per_kwh: float | None
    issued_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class SiteIntensity:
    """The emissions of a site's grid by its feed: before now, and as forecast after it."""

    site: str
    source: str
    actual: tuple[IntensityStep, ...]
    forecast: tuple[IntensityStep, ...]


@dataclass(frozen=True, slots=True)
class SiteCarbon:
    """A site's emissions (location-based, PUE included) and the intensity of its grid.

    `unknown` marks buckets in which it drew power, or a meter was silent, and its emissions are not known.
    `known_until_s` is the end of the last value that its feed had, which may be before the range. Of several sites
    together (`colour` None) the rates are added up; an intensity they have none, since their grids differ.
    """

    site: str
    label: str
    colour: int | None
    rate_g_per_h: Values
    actual: tuple[IntensityStep, ...] = ()
    forecast: tuple[IntensityStep, ...] = ()
    source: str = ""
    known_until_s: float | None = None
    unknown: tuple[bool, ...] = ()
    together: int = 1


@dataclass(frozen=True, slots=True)
class CarbonFrame:
    time_range: TimeRange
    sites: tuple[SiteCarbon, ...]


@dataclass(frozen=True, slots=True)
class SloSeries:
    """Share of judged requests within an objective, over a rolling window that ends with each bucket."""

    service: str
    kind: str  # ttft | tpot | e2e
    objective_s: float
    target: float  # share, 0..1
    attained: Values
    judged: tuple[int, ...]
    total_judged: int  # over the whole range
    total_within: int

    @property
    def overall(self) -> float | None:
        return self.total_within / self.total_judged if self.total_judged else None


@dataclass(frozen=True, slots=True)
class SloFrame:
    time_range: TimeRange
    rolling_s: float
    series: tuple[SloSeries, ...]
    judged: int = 0  # over the whole range, all objectives together
    met: int = 0
    last_end_s: float | None = None

    @property
    def share(self) -> float | None:
        return self.met / self.judged if self.judged else None

    @property
    def worst(self) -> SloSeries | None:
        """The objective furthest below its target, or nearest to it."""
        known = [s for s in self.series if s.overall is not None]
        return min(known, key=lambda s: ((s.overall or 0.0) - s.target, s.service, s.kind), default=None)


@dataclass(frozen=True, slots=True)
class JainFrame:
    """The Jain index of tenants and, for each class of a service, that of lengths (FREESH C.2).

    `classes`: by service and class.
    """

    time_range: TimeRange
    rolling_s: float
    tenants: Values
    overall: float | None
    classes: dict[tuple[str, str], Values] = field(default_factory=dict)
    last_end_s: float | None = None


@dataclass(frozen=True, slots=True)
class DecisionTick:
    """A decision as a mark on the time axis."""

    at_s: float
    kind: str
    reason: str
    summary: str
    url: str


@dataclass(frozen=True, slots=True)
class SiteNow:
    label: str
    power_w: float | None
    gpus: int
    reporting: int
    intensity_g_per_kwh: float | None


@dataclass(frozen=True, slots=True)
class Totals:
    """Energy metered at the GPUs and its location-based carbon (PUE included) since `since_s`.

    `without`: the sites of which some carbon is not known, by name.
    """

    since_s: float
    energy_j: float | None
    carbon_gco2e: float | None
    share_without_intensity: float | None  # of the energy: the carbon of this share is unknown, and not in the sum
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FeedState:
    """A carbon feed: when it last answered, until when its values are known. `refresh_s` None: asked as the others."""

    site_label: str
    signal: str
    provider: str
    source: str
    last_ok_s: float | None
    last_error: str
    last_error_s: float | None
    known_until_s: float | None
    refresh_s: float | None = None
    site: str = ""


@dataclass(frozen=True, slots=True)
class GpuFrame:
    """One GPU over time. `missing_s`: how much of each bucket its meter was silent; a gap is not bridged."""

    time_range: TimeRange
    gpu: str
    power_w: Values
    power_max_w: Values
    sm_clock_mhz: Values
    temperature_max_c: Values
    missing_s: tuple[float, ...]
    gaps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeterGaps:
    """A GPU's meter over a span of time: how long it was heard and how often it fell silent."""

    gpu: str
    node: str
    site_label: str
    heard_s: float
    missing_s: float
    gaps: int


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A line of the pool table. None: unknown, or nothing to measure in the last minutes.

    What is metered, and the objectives beside it, are None until they are asked for (`selectors.measured`).
    """

    id: int
    state: str
    request_class: str
    class_rank: int
    partition: str
    active: bool  # its partition is in force, and something is wanted or running
    service: str
    site: str
    site_label: str
    wanted: dict[str, int]
    instances: dict[str, int]  # mode -> live instances
    ready: int
    gpus: int
    clock_mhz: float | None
    running: int | None
    waiting: int | None
    kv_usage: float | None
    clock_min_mhz: float | None = None
    clock_max_mhz: float | None = None
    power_w: float | None = None
    ttft_p99_s: float | None = None
    ttft_objective_s: float | None = None
    tpot_p99_s: float | None = None
    tpot_objective_s: float | None = None
    energy_per_token_j: float | None = None
    carbon_per_1k_tokens_g: float | None = None

    @property
    def clock_share(self) -> float | None:
        """Returns where the clock stands between its limits, 0..1."""
        if self.clock_mhz is None or self.clock_min_mhz is None or self.clock_max_mhz is None:
            return None
        span = self.clock_max_mhz - self.clock_min_mhz
        return min(1.0, max(0.0, (self.clock_mhz - self.clock_min_mhz) / span)) if span > 0 else 1.0

    @property
    def instances_words(self) -> str:
        """`1 of 2 x A100-80GB/TP4`: what lives, and of how many where more or fewer are wanted."""
        words = []
        for mode in sorted({*self.wanted, *self.instances}):
            live, wanted = self.instances.get(mode, 0), self.wanted.get(mode, 0)
            words.append(f"{live}{'' if live == wanted else f' of {wanted}'} \u00d7 {mode}")
        return ", ".join(words)
