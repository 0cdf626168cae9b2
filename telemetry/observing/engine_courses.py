"""Counts of each engine over the time that it was observed, by its own metrics' names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from pools.metric_names import EngineNames, Names

from .histograms import CountedBuckets
from .increases import Increase, increases
from .scrapes import SampleKey, Target, engine_of, family_of

MODEL_LABEL = "model_name"
_RANK_LABEL = "engine"  # of vLLM: a number for each data-parallel rank
_BUCKET_LABEL = "le"
_OPTIONAL = frozenset(("tpot", "itl"))  # one of the two is enough


@dataclass(frozen=True, slots=True, eq=False)
class EngineCourse:
    """One engine's page from its first scrape to its last. `ranks`: data-parallel engines that share the page."""

    target: Target
    names: EngineNames
    model: str | None
    ranks: int
    steps: tuple[Increase, ...]
    families: frozenset[str]  # metrics that its pages have

    @property
    def missing(self) -> tuple[str, ...]:
        """The metrics that its engine's pages should have and these do not."""
        found = []
        for item in fields(self.names):
            wanted = getattr(self.names, item.name)
            if isinstance(wanted, tuple) and wanted and self.families.isdisjoint(wanted):
                other = {"tpot": self.names.itl, "itl": self.names.tpot}.get(item.name, ())
                if item.name not in _OPTIONAL or self.families.isdisjoint(other):
                    found.append(wanted[0])
        return tuple(dict.fromkeys(found))

    def counted(self, names: Names) -> float | None:
        """Returns how much a counter counted, over all its labels; None: no two pages have it."""
        name = self._present(names)
        return None if name is None or not self.steps else sum(value for _, value in self._values(name))

    def requests(self) -> float | None:
        """Returns how many requests ended: by the counter of them, else by the histogram of their latencies."""
        found = self.counted(self.names.requests)
        return self.counted(self._ended()) if found is None else found

    def request_steps(self) -> list[tuple[float, float, float]]:
        """Returns requests that ended by scrape, each (from, to, requests), times in Unix seconds."""
        name = self._present(self.names.requests) or self._present(self._ended())
        return [
            (step.from_s, step.to_s, sum(value for key, value in step.values.items() if key.name == name))
            for step in self.steps
        ]

    def by_label(self, names: Names, label: str) -> dict[str, float]:
        """Returns how much a counter counted by the values of a label, of series without it under the empty one."""
        found: dict[str, float] = {}
        name = self._present(names)
        for key, value in self._values(name) if name else ():
            own = key.label(label) or ""
            found[own] = found.get(own, 0.0) + value
        return found

    def buckets(self, names: Names) -> CountedBuckets | None:
        """Returns a histogram of what was counted, over all its labels; None: the pages do not have it."""
        name = next((one for one in names if one in self.families), None)
        if name is None or not self.steps:
            return None
        by_end: dict[float, float] = {}
        for key, value in self._values(f"{name}_bucket"):
            end = float(key.label(_BUCKET_LABEL) or "nan")
            by_end[end] = by_end.get(end, 0.0) + value
        count, total = (sum(value for _, value in self._values(f"{name}{end}")) for end in ("_count", "_sum"))
        ends = sorted(end for end in by_end if math.isfinite(end))
        return CountedBuckets(tuple(ends), tuple(by_end[end] for end in ends), count, total)

    def running(self) -> list[tuple[float, float | None]]:
        """Returns how many requests ran at each scrape, (Unix seconds, requests); None: the page does not say."""
        return [(scrape.at_s, _sum_of(scrape.samples or {}, self.names.running)) for scrape in self.target.read]

    def _ended(self) -> Names:
        return tuple(f"{name}_count" for name in self.names.e2e)

    def _present(self, names: Names) -> str | None:
        return next((name for name in names if family_of(name) in self.families or name in self.families), None)

    def _values(self, name: str) -> Iterator[tuple[SampleKey, float]]:
        for step in self.steps:
            for key, value in step.values.items():
                if key.name == name:
                    yield key, value


def _sum_of(samples: dict[SampleKey, float] | object, names: Names) -> float | None:
    found = [value for key, value in samples.items() if key.name in names] if isinstance(samples, dict) else []
    return sum(found) if found else None


def engine_course(target: Target) -> EngineCourse | None:
    """Returns what an engine's pages say; None: no page could be read, or no known engine's metrics are on them."""
    names = engine_of(target)
    if names is None:
        return None
    keys = {key for scrape in target.read for key in scrape.samples or ()}
    own = {key for key in keys if key.name.startswith(names.prefix)}

    def values_of(label: str, where: Callable[[SampleKey], bool] = lambda key: True) -> list[str]:
        return sorted({value for key in own if where(key) and (value := key.label(label)) is not None})

    models = values_of(MODEL_LABEL)
    ranks = values_of(_RANK_LABEL, lambda key: key.name in names.running)
    families = frozenset(family_of(key.name) for key in own) | {key.name for key in own}
    return EngineCourse(target, names, models[0] if models else None, max(1, len(ranks)), increases(target), families)
