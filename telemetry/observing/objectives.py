"""Attainment of objectives from cumulative histograms: exact at the end of a bucket, else two bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from .engine_courses import EngineCourse
from .histograms import CountedBuckets
from .observation import Attainment, FigureSource

TTFT, TPOT, E2E = OBJECTIVES = ("ttft", "tpot", "e2e")
DERIVED_SHARE = 0.99
_REQUESTS, _GAPS = "requests", "gaps between tokens"
_WORDS: Mapping[str, str] = MappingProxyType({TTFT: "TTFT", TPOT: "TPOT", E2E: "E2E latency"})


def attainments(courses: Sequence[EngineCourse], given: Mapping[str, float | None]) -> tuple[Attainment, ...]:
    """Returns the attainment of each objective. One that nobody gave is what the fleet keeps for 99 % of requests.

    Args:
        given: Seconds by objective.
    """
    return tuple(_attainment(name, courses, given.get(name)) for name in OBJECTIVES)


def _attainment(name: str, courses: Sequence[EngineCourse], given_s: float | None) -> Attainment:
    found, counts = _counted(name, courses)
    total = sum(own.count for own in found)
    limit_s = given_s if given_s is not None else _kept_now_s(found)
    if total <= 0.0 or limit_s is None:
        note = f"no engine counted {_WORDS[name]}: no request ended, or the pages lack the histogram"
        return Attainment(name, given_s, given_s is None, None, None, 0.0, counts, FigureSource.MISSING, note)
    least, most = (sum(values) / total for values in zip(*(own.at_most(limit_s) for own in found), strict=True))
    note = "" if least == most else "the objective lies within a bucket: the share is between the two"
    if counts == _GAPS:
        note = "; ".join(filter(None, (note, "these engines count each gap, not a request's mean (TPOT)")))
    return Attainment(name, limit_s, given_s is None, least, most, total, counts, FigureSource.HISTOGRAM, note)


def _counted(name: str, courses: Sequence[EngineCourse]) -> tuple[list[CountedBuckets], str]:
    """Returns the histograms of an objective, and what they count: TPOT of requests where all engines have it."""
    if name != TPOT:
        return _present([own.buckets(own.names.ttft if name == TTFT else own.names.e2e) for own in courses]), _REQUESTS
    means = [own.buckets(own.names.tpot) for own in courses]
    if all(own is not None for own in means):
        return _present(means), _REQUESTS
    gaps = [own.buckets(own.names.itl) for own in courses]
    return _present([gap or mean for gap, mean in zip(gaps, means, strict=True)]), _GAPS


def _present(found: Sequence[CountedBuckets | None]) -> list[CountedBuckets]:
    return [own for own in found if own is not None and own.count > 0.0]


def _kept_now_s(found: Sequence[CountedBuckets]) -> float | None:
    """Returns the least end of a bucket within which 99 % of all requests came; None: there is none."""
    total = sum(own.count for own in found)
    for end in sorted({end for own in found for end in own.bounds}):
        if sum(own.at_most(end)[0] for own in found) >= DERIVED_SHARE * total > 0.0:
            return end
    return None
