"""Pages of Prometheus text as samples: of the metrics that are read here, one scrape after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from pools.metric_names import DCGM_BUSY, DCGM_ENERGY, DCGM_MEMORY, DCGM_POWER, ENGINES, EngineNames

START_TIME = "process_start_time_seconds"  # of the process that serves the page; another one is another process
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
_DCGM_PREFIX = "DCGM_FI_DEV_"
PREFIXES = (*(names.prefix for names in ENGINES), _DCGM_PREFIX, START_TIME)
# Others are left out: whether an unknown metric may go down is not known, and it must not look like a reset.
KNOWN = frozenset((START_TIME, DCGM_ENERGY, DCGM_POWER, DCGM_BUSY, DCGM_MEMORY)).union(*(own.all for own in ENGINES))


class SampleKey(NamedTuple):
    """A series: the sample's name, and its labels in the order of their names."""

    name: str
    labels: tuple[tuple[str, str], ...]

    def label(self, name: str) -> str | None:
        return next((value for key, value in self.labels if key == name), None)


class TargetKind(StrEnum):
    ENGINE = "engine"
    GPUS = "gpus"


@dataclass(frozen=True, slots=True)
class Scrape:
    """A target's page at a moment, Unix seconds. `samples` is None where it could not be read; `error` says why."""

    at_s: float
    samples: Mapping[SampleKey, float] | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A page that is read, by its URL or by the instance's name in Prometheus, with its scrapes in order of time."""

    name: str
    kind: TargetKind
    scrapes: tuple[Scrape, ...]

    @property
    def read(self) -> tuple[Scrape, ...]:
        """The scrapes that could be read."""
        return tuple(scrape for scrape in self.scrapes if scrape.samples is not None)


def sample_key(name: str, labels: Mapping[str, str]) -> SampleKey:
    return SampleKey(name, tuple(sorted(labels.items())))


def samples_of(text: str) -> dict[SampleKey, float]:
    """Reads the samples of known metrics from a page.

    Raises:
        ValueError: A line of a known metric is not Prometheus text.
    """
    wanted = "\n".join(line for line in text.splitlines() if line.startswith(PREFIXES))
    found = {}
    for family in text_string_to_metric_families(f"{wanted}\n"):
        for sample in family.samples:
            if family_of(sample.name) in KNOWN or sample.name in KNOWN:
                found[sample_key(sample.name, sample.labels)] = float(sample.value)
    return found


def family_of(name: str) -> str:
    """Returns a sample's metric: a histogram's samples have the suffixes of their parts."""
    return next((name.removesuffix(end) for end in HISTOGRAM_SUFFIXES if name.endswith(end)), name)


def engine_of(target: Target) -> EngineNames | None:
    """Returns the engine whose names a target's pages have; None: no known engine's."""
    for scrape in target.read:
        names = {key.name for key in scrape.samples or ()}
        for engine in ENGINES:
            if any(name.startswith(engine.prefix) for name in names):
                return engine
    return None
