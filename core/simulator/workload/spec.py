"""The `workload` section of a scenario."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core.simulator.fields import Section
from core.simulator.workload.curves import DAY_S, PRESETS, WEEK_S, WEEKDAYS, RateCurve, WeekShape, week_curve
from core.simulator.workload.generate import Generator
from core.simulator.workload.lengths import AZURE_CONV, Distribution, Exponential, Fixed, Lengths, Lognormal, Quantiles

GENERATORS = ("azure-conv-like", "poisson", "gamma", "week")
LENGTHS = ("fixed", "exponential", "azure-conv")
DEFAULT_REQUESTS = 10_000  # of a generator that says neither how many nor for how long; a week lasts a week
DEFAULT_JITTER_S = 30.0
_ONLY = {  # fields that only some generators know
    ("gamma", "week"): ("cv",),
    ("poisson", "gamma"): ("rate_curve", "rates"),
    ("week",): ("preset", "start_weekday", "start_hour", "utc_offset_h"),
}
_MOST_STEP_S = round(WEEK_S)  # of one step of `rates`
_MOST_TOKENS = 10**9
_MOST_SIGMA = 5.0


@dataclass(frozen=True, slots=True)
class Workload:
    """The source of requests: a trace, or else a generator; and what is done with them, in this order.

    Time runs `time_scale` times as fast; there are `rate_scale` times as many in the same span; the first `requests` of
    those within `duration_s` are taken; each is given a tenant by its share; all come `starts_s` later.
    """

    trace: Path | None = None
    generator: Generator | None = None
    time_scale: float = 1.0
    rate_scale: float = 1.0
    rate_jitter_s: float = DEFAULT_JITTER_S
    requests: int | None = None
    duration_s: float | None = None
    tenants: tuple[tuple[str, float], ...] = ()
    prefix_hit_ratio: float = 0.0
    starts_s: float = 0.0


def read_workload(section: Section, folder: Path) -> Workload:
    """Reads the section; `folder` is where relative traces are looked for.

    Raises:
        ScenarioError: A field is wrong.
    """
    trace = section.text("trace", "")
    requests, duration_s = section.maybe_integer("requests", least=1), section.number("duration_s", None, above=0.0)
    time_scale = section.number("time_scale", 1.0, above=0.0) or 1.0
    found = Workload(
        trace=folder / trace if trace else None,
        generator=_generator(section),
        time_scale=time_scale,
        rate_scale=section.number("rate_scale", 1.0, above=0.0) or 1.0,
        rate_jitter_s=_number(section, "rate_jitter_s", DEFAULT_JITTER_S, least=0.0),
        requests=requests,
        duration_s=duration_s,
        tenants=_tenants(section),
        prefix_hit_ratio=_number(section, "prefix_hit_ratio", 0.0, least=0.0, most=1.0),
        starts_s=_number(section, "starts_s", 0.0, least=0.0),
    )
    section.finish()
    return found


def _number(
    section: Section,
    key: str,
    default: float | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
) -> float:
    value = section.number(key, default, least=least, above=above)
    if value is None:
        raise section.error(key, "missing; give a number")
    if most is not None and value > most:
        raise section.error(key, f"must be at most {most:g}, not {value}")
    return value


def _tenants(section: Section) -> tuple[tuple[str, float], ...]:
    own = section.section("tenants")
    return tuple((name, _number(own, name, above=0.0)) for name in own.names())


def _generator(section: Section) -> Generator | None:
    kind = section.choice("generate", GENERATORS, "")
    for only, keys in _ONLY.items():
        if strange := [key for key in keys if key in section.names() and kind not in only]:
            raise section.error(strange[0], f"goes with generate: {' or '.join(only)}")
    rate_rps, curve, start_s = _rate(section, kind)
    cv = _number(section, "cv", 1.0, least=0.0, most=100.0)
    lengths = _lengths(section, "azure-conv" if kind in ("azure-conv-like", "week") else "fixed")
    return Generator(rate_rps, lengths, cv, curve, start_s) if kind else None


def _rate(section: Section, kind: str) -> tuple[float, RateCurve | None, float]:
    """Reads the mean rate in requests/s, the curve around it, and where on that the scenario starts, in s."""
    rate_rps = section.number("rate_rps", None, above=0.0)
    steps = _steps(section)
    if steps is None:
        curve, start_s = _week(section) if kind == "week" else (_curve(section), 0.0)
        return 1.0 if rate_rps is None else rate_rps, curve, start_s
    if rate_rps is not None or section.is_mapping("rate_curve"):
        key = "rate_curve" if rate_rps is None else "rate_rps"
        raise section.error(
            key, "goes without rates, which say each step's requests a second; leave out one of the two"
        )
    return *steps, 0.0


def _steps(section: Section) -> tuple[float, RateCurve] | None:
    """Reads `rates`, the steps of a curve with a rate each, and their mean over time; None: it says nothing of them.

    Steps need not be alike: the curve has the longest even ones that all of them are made of.
    """
    spans_s: list[int] = []
    rates: list[float] = []
    for own in section.sections("rates"):
        for_s = own.maybe_integer("for_s", 1, _MOST_STEP_S)
        if for_s is None:
            raise own.error("for_s", "missing; say for how many seconds the rate holds")
        spans_s.append(for_s)
        rates.append(_number(own, "rps", least=0.0))
        own.finish()
    if not spans_s:
        return None
    if max(rates) <= 0.0:
        raise section.error("rates", "one of the rates must be above 0")
    step_s = math.gcd(*spans_s)
    even = [rps for for_s, rps in zip(spans_s, rates, strict=True) for _ in range(for_s // step_s)]
    return sum(even) / len(even), RateCurve(float(step_s), tuple(even))


def _curve(section: Section) -> RateCurve | None:
    own = section.optional("rate_curve")
    if own is None:
        return None
    curve = RateCurve(_number(own, "step_s", above=0.0), own.numbers("rates"))
    own.finish()
    if min(curve.rates) < 0.0 or max(curve.rates) <= 0.0:
        raise own.error("rates", "must be at least 0, and one of them above")
    return curve


def _week(section: Section) -> tuple[RateCurve, float]:
    """Reads the curve, and where on it the scenario starts."""
    if section.is_mapping("preset"):
        own = section.section("preset")
        shape = WeekShape(
            peak_to_mean=_number(own, "peak_to_mean"),
            peak_to_valley=_number(own, "peak_to_valley"),
            weekend=_number(own, "weekend", 1.0),
            peak_hour=_number(own, "peak_hour", 14.0),
        )
        own.finish()
    else:
        shape = PRESETS[section.choice("preset", tuple(PRESETS), "conversation")]
    day = WEEKDAYS.index(section.choice("start_weekday", WEEKDAYS, WEEKDAYS[0]))
    hour = _number(section, "start_hour", 0.0, least=0.0, most=24.0)
    offset_h = _number(section, "utc_offset_h", 0.0, least=-24.0, most=24.0)
    try:
        return week_curve(shape), (day * DAY_S + (hour + offset_h) * 3600.0) % WEEK_S
    except ValueError as error:
        raise section.error("preset", str(error)) from None


def _lengths(section: Section, default: str) -> Lengths:
    """Reads `lengths`: a name, or prompt and output each with a distribution of its own, and their correlation."""
    plain = [section.maybe_integer(key, 1, _MOST_TOKENS) for key in ("prompt_tokens", "output_tokens")]
    named = not section.is_mapping("lengths")
    kind = section.choice("lengths", LENGTHS, default) if named else ""
    if kind in ("", "azure-conv") and (key := _first_given(("prompt_tokens", "output_tokens"), plain)):
        raise section.error(key, "goes with lengths: fixed or exponential, of which it is the mean")
    if kind == "azure-conv":
        return AZURE_CONV
    prompt, output = (float(value or usual) for value, usual in zip(plain, (1000, 200), strict=True))
    if kind:
        return (
            Lengths(Fixed(prompt), Fixed(output))
            if kind == "fixed"
            else Lengths(Exponential(prompt), Exponential(output))
        )
    own = section.section("lengths")
    found = Lengths(
        _distribution(own, "prompt"), _distribution(own, "output"), _number(own, "correlation", 0.0, -1.0, most=1.0)
    )
    own.finish()
    return found


def _first_given(keys: tuple[str, ...], values: list[int | None]) -> str | None:
    return next((key for key, value in zip(keys, values, strict=True) if value is not None), None)


def _distribution(section: Section, key: str) -> Distribution:
    """Reads a number, or `{exponential: MEAN}`, `{lognormal: {mean, sigma}}`, `{quantiles: {shares, tokens}}`."""
    if not section.is_mapping(key):
        if section.maybe_integer(key, 1, _MOST_TOKENS) is None:
            raise section.error(key, f"missing; give a number of tokens, or one of {', '.join(_READERS)}")
        return Fixed(float(section.integer(key, 1, 1)))
    own = section.section(key)
    kinds = own.names()
    if len(kinds) != 1 or kinds[0] not in _READERS:
        raise section.error(key, f"must be a number of tokens, or have one of {', '.join(_READERS)}")
    found = _READERS[kinds[0]](own)
    own.finish()
    return found


def _exponential(section: Section) -> Distribution:
    return Exponential(_number(section, "exponential", least=1.0, most=_MOST_TOKENS))


def _lognormal(section: Section) -> Distribution:
    own = section.section("lognormal")
    mean = _number(own, "mean", least=1.0, most=_MOST_TOKENS)
    found = Lognormal(mean, _number(own, "sigma", least=0.0, most=_MOST_SIGMA))
    own.finish()
    return found


def _quantiles(section: Section) -> Distribution:
    own = section.section("quantiles")
    shares, tokens = own.numbers("shares"), own.numbers("tokens")
    own.finish()
    if len(shares) < 2 or list(shares) != sorted(set(shares)) or shares[0] != 0.0 or shares[-1] != 1.0:
        raise own.error("shares", "must ascend from 0 to 1")
    if len(tokens) != len(shares):
        raise own.error("tokens", f"must be as many as shares, {len(shares)}, not {len(tokens)}")
    if list(tokens) != sorted(tokens) or tokens[0] < 1.0 or tokens[-1] > _MOST_TOKENS:
        raise own.error("tokens", "must ascend from at least 1")
    return Quantiles(shares, tokens)


_READERS: dict[str, Callable[[Section], Distribution]] = {
    "exponential": _exponential,
    "lognormal": _lognormal,
    "quantiles": _quantiles,
}
