"""What series there are: each reads telemetry's selectors and says unit and source beside every line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rest_framework.exceptions import ValidationError

from pools.models import Gpu
from telemetry import selectors
from telemetry.selectors.frames import TimeRange, Values

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
class SeriesRequest:
    window: TimeRange
    sites: frozenset[str]  # that the reader may see, and asked for
    service: str | None = None
    gpu: Gpu | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """`step_s`: buckets are whole multiples of it."""

    description: str
    read: Callable[[SeriesRequest], Iterable[LabelledSeries]]
    step_s: float = 10.0


def _points(window: TimeRange, values: Values) -> list[Point]:
    return list(zip(window.starts_s, values, strict=True))


def _power(asked: SeriesRequest) -> Iterable[LabelledSeries]:
    for site in selectors.power(asked.window).sites:
        if site.site in asked.sites:
            for part, values in (("in_use", site.in_use_w), ("idle", site.idle_w)):
                yield LabelledSeries({"site": site.site, "part": part}, "W", LEDGER, _points(asked.window, values))


def _energy(asked: SeriesRequest) -> Iterable[LabelledSeries]:
    """Yields the joules of each bucket, metered at the GPUs."""
    for site in selectors.power(asked.window).sites:
        if site.site in asked.sites:
            joules = tuple(
                None if used is None or idle is None else (used + idle) * asked.window.bucket_s
                for used, idle in zip(site.in_use_w, site.idle_w, strict=True)
            )
            yield LabelledSeries({"site": site.site}, "J", LEDGER, _points(asked.window, joules))


def _carbon(asked: SeriesRequest) -> Iterable[LabelledSeries]:
    _, frame = selectors.energy(asked.window)
    for site in frame.sites:
        if site.site in asked.sites:
            source = f"{LEDGER}; intensity: {site.source or 'none'}; location-based, PUE included"
            yield LabelledSeries({"site": site.site}, "gCO2e/h", source, _points(asked.window, site.rate_g_per_h))


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
    for name, values in frame.classes.items():
        yield LabelledSeries(
            {"across": "lengths", "request_class": name}, "index", REQUESTS, _points(asked.window, values)
        )


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
    "power": Series("Mean power of each site, metered at its GPUs, in use and idle.", _power),
    "energy": Series("Energy of each site in each bucket, metered at its GPUs.", _energy),
    "carbon": Series("What each site emits: location-based, average intensity, PUE included.", _carbon),
    "intensity": Series("Carbon intensity of each site's grid: actual, and the newest forecast after it.", _intensity),
    "slo": Series("Share of requests within each objective of each service, over a rolling window.", _slo),
    "jain": Series("Jain's index across tenants, and within each class across lengths of answers.", _jain),
    "gpu": Series("One GPU's power, clock and temperature.", _gpu, 60.0),
}
