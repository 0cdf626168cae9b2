"""What series there are: each reads telemetry's selectors and says unit and source beside every line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from rest_framework.exceptions import ValidationError

from pools.models import Gpu
from telemetry import selectors
from telemetry.selectors.frames import TimeRange, Values
from telemetry.selectors.ledger_frames import SiteSums

from ..rest.sampling import Point

LEDGER = "Energy ledger: the GPUs' own counters"
REQUESTS = "Request records of the gateways"
SAMPLES = "Samples of the agents, rolled up"


@dataclass(frozen=True, slots=True)
class LabelledSeries:
    """One line of a series. `labels` say whose it is; a point's time is the start of its bucket."""

    labels: Mapping[str, str]
    unit: str
    source: str
    points: list[Point]


@dataclass(frozen=True, slots=True)
class LabelledSums:
    """One line of exact sums: what the ledger has of each bucket, and what is missing in it.

    `heard_share` is of the site's meters, all kinds together. `unknown_share` is of the energy: what has no intensity,
    so that its carbon is not in the sum; None for sums of energy, of which all is known.
    """

    labels: Mapping[str, str]
    unit: str
    source: str
    points: list[tuple[float, Decimal | None]]
    heard_share: Values
    silent: tuple[bool, ...]
    unknown_share: Values | None = None


@dataclass(frozen=True, slots=True)
class SeriesRequest:
    window: TimeRange
    sites: frozenset[str]  # that the reader may see, and asked for
    service: str | None = None
    gpu: Gpu | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """`step_s`: buckets are whole multiples of it. `sums`: its values are sums, of which none may be left out."""

    description: str
    read: Callable[[SeriesRequest], Iterable[LabelledSeries | LabelledSums]]
    step_s: float = 10.0
    sums: bool = False


def _points(window: TimeRange, values: Values) -> list[Point]:
    return list(zip(window.starts_s, values, strict=True))


def _power(asked: SeriesRequest) -> Iterable[LabelledSeries]:
    source = f"{LEDGER}; mean over what was heard of them"
    for site in selectors.power(asked.window).sites:
        if site.site in asked.sites:
            for part, values in (("in_use", site.in_use_w), ("idle", site.idle_w)):
                yield LabelledSeries({"site": site.site, "part": part}, "W", source, _points(asked.window, values))


def _ledger(asked: SeriesRequest) -> Iterator[SiteSums]:
    frame = selectors.ledger_sums(asked.window, time.time())
    return (site for site in frame.sites if site.site in asked.sites)


def _exact(window: TimeRange, millionths: Iterable[int | None]) -> list[tuple[float, Decimal | None]]:
    values = (None if one is None else Decimal(one).scaleb(-6) for one in millionths)
    return list(zip(window.starts_s, values, strict=True))


def _energy(asked: SeriesRequest) -> Iterable[LabelledSums]:
    """Yields the joules of each bucket by kind, metered at the GPUs."""
    for site in _ledger(asked):
        for kind, sums in site.kinds.items():
            points = _exact(asked.window, sums.energy_uj)
            labels = {"site": site.site, "kind": kind}
            yield LabelledSums(labels, "J", LEDGER, points, site.heard_share, site.silent)


def _carbon(asked: SeriesRequest) -> Iterable[LabelledSums]:
    feeds = {site.site: site.source for site in selectors.intensities(asked.window)}
    for site in _ledger(asked):
        source = _emitted(feeds[site.site])
        for kind, sums in site.kinds.items():
            unknown = tuple(
                uj / of if of and uj is not None else None
                for uj, of in zip(sums.unknown_uj, sums.energy_uj, strict=True)
            )
            points, labels = _exact(asked.window, sums.carbon_ug), {"site": site.site, "kind": kind}
            yield LabelledSums(labels, "gCO2e", source, points, site.heard_share, site.silent, unknown)


def _carbon_rate(asked: SeriesRequest) -> Iterable[LabelledSeries]:
    _, frame = selectors.energy(asked.window)
    for site in frame.sites:
        if site.site in asked.sites:
            source = f"{_emitted(site.source)}; mean over what was heard of the meters"
            yield LabelledSeries({"site": site.site}, "gCO2e/h", source, _points(asked.window, site.rate_g_per_h))


def _emitted(feed: str) -> str:
    return f"{LEDGER}; intensity: {feed or 'none'}; location-based, PUE included"


def _intensity(asked: SeriesRequest) -> Iterable[LabelledSeries]:
    for site in selectors.intensities(asked.window):
        if site.site in asked.sites:
            for kind, steps in (("actual", site.actual), ("forecast", site.forecast)):
                points = [(step.start_s, step.g_per_kwh) for step in steps]
                yield LabelledSeries({"site": site.site, "kind": kind}, "gCO2e/kWh", site.source, points)


def _slo(asked: SeriesRequest) -> Iterable[LabelledSeries]:
    for one in selectors.slo(asked.window).series:
        if asked.service in (None, one.service):
            labels = {"service": one.service, "objective": one.kind}
            yield LabelledSeries(labels, "share", REQUESTS, _points(asked.window, one.attained))


def _jain(asked: SeriesRequest) -> Iterable[LabelledSeries]:
    frame = selectors.fairness(asked.window)
    yield LabelledSeries({"across": "tenants"}, "index", REQUESTS, _points(asked.window, frame.tenants))
    for (service, name), values in frame.classes.items():
        if asked.service in (None, service):
            labels = {"across": "lengths", "service": service, "request_class": name}
            yield LabelledSeries(labels, "index", REQUESTS, _points(asked.window, values))


def _gpu(asked: SeriesRequest) -> Iterable[LabelledSeries]:
    if asked.gpu is None:
        raise ValidationError({"gpu": "give the uuid of one; gpus/ lists them"})
    frame = selectors.gpu_series(asked.gpu.pk, asked.gpu.uuid, asked.window)
    values = (
        ("power", "W", frame.power_w),
        ("power_max", "W", frame.power_max_w),
        ("sm_clock", "MHz", frame.sm_clock_mhz),
        ("temperature_max", "C", frame.temperature_max_c),
    )
    for name, unit, found in values:
        yield LabelledSeries({"gpu": frame.gpu, "quantity": name}, unit, SAMPLES, _points(asked.window, found))


SERIES: Mapping[str, Series] = {
    "power": Series("Mean power of each site over what was heard of its GPUs' meters, in use and idle.", _power),
    "energy": Series(
        "Energy of each site by kind, as the ledger has it of each bucket: sums are the ledger's to the digit.",
        _energy,
        sums=True,
    ),
    "carbon": Series(
        "What each site emitted in each bucket by kind, as settled: location-based, average intensity, PUE included.",
        _carbon,
        step_s=60.0,
        sums=True,
    ),
    "carbon_rate": Series(
        "What each site emits an hour: the mean over what was heard of its meters; location-based, PUE included.",
        _carbon_rate,
    ),
    "intensity": Series("Carbon intensity of each site's grid: actual, and the newest forecast after it.", _intensity),
    "slo": Series("Share of requests within each objective of each service, over a rolling window.", _slo),
    "jain": Series("The Jain index of tenants, and that of lengths of each class of a service.", _jain),
    "gpu": Series("One GPU's power, clock and temperature.", _gpu, 60.0),
}
