"""Calibration while serving: by how much engines differ from what is predicted of them, from what they report anyway.

An engine tells how many sequences run and how many tokens it has made, its GPUs' meters how many joules. Over a window
in which it was busy all along, B running sequences make B tokens an iteration, so that the mean iteration takes
B s / tokens. Held against the prediction for that batch, its contexts, its share of prompts (the mean iteration of
`steady_state`) and its clock, span by span, it gives a ratio of time; the joules give one of power. A prompt that is
taken in by chunks is in several iterations and makes a token in the last. Ratios are kept by clock, in logarithms; old
ones fade, so that a residual follows an engine that changes within minutes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from core.engine.corrections import BOUNDS, KNOTS, Correction, place
from core.engine.engine_params import GpuParams
from core.engine.iteration import IterationCosts, Totals
from core.types import Source

MEMORY_S = 120.0  # a window counts half as much after so long
LEAST_WINDOWS = 6.0  # below which nothing is corrected
# Single windows of simulated engines that do just as predicted are 3 % off where a dozen sequences run, 9 % where two
# do; half a dozen of them together still some 3 %. What follows keeps that from becoming corrections.
NOISE = 0.03  # least standard deviation of a window's logarithm: a handful that agree by chance prove little
SURE = 2.0  # standard errors by which a mean must be beyond a share
BEGIN = 0.05  # share by which time or power must be off, surely, before anything is corrected
LEAST_CHANGE = 0.03  # share by which a correction in force must be off before it is renewed
FULL_RUNNING = 4.0  # mean sequences of a window that counts whole; with fewer it may have been idle between reports
DRIFT = 0.10  # share beyond which, surely, a profile is asked for
_PRIOR_WINDOWS = 2.0  # with so many at a knot it counts as much as all others together


@dataclass(frozen=True, slots=True)
class Span:
    """An engine between two reports, at one clock. None: not known.

    `running` is a mean; `kv_tokens` the mean tokens in its cache; `prompts` and `prompt_tokens` were prefilled in it.
    """

    at_s: float  # its end
    seconds: float
    mhz: float
    running: float
    generated_tokens: float
    prompt_tokens: float
    prompts: float
    kv_tokens: float
    joules: float | None


@dataclass(frozen=True, slots=True)
class Window:
    """Some seconds in which an engine always had requests running: spans that follow each other, at clocks of their
    own.

    Reports are read a little early or late, and the sequences that run are counted at reports only. Over many spans
    together that cancels out; in each it does not.
    """

    spans: tuple[Span, ...]

    @property
    def at_s(self) -> float:
        return self.spans[-1].at_s

    @property
    def seconds(self) -> float:
        return math.fsum(span.seconds for span in self.spans)

    @property
    def joules(self) -> float | None:
        known = [span.joules for span in self.spans if span.joules is not None]
        return math.fsum(known) if len(known) == len(self.spans) else None


@dataclass(frozen=True, slots=True)
class Ratio:
    """Measured over predicted: seconds, and watts. `power` None: the meters said nothing."""

    time: float
    power: float | None


def ratio(window: Window, costs: IterationCosts, chunk_tokens: int = 0) -> Ratio | None:
    """Returns measured over predicted of a window; None: it says nothing, or nothing that one can believe.

    Seconds are those of sequences: each of B that run waits an iteration for its token.

    Args:
        chunk_tokens: Of one prompt that the engine takes into an iteration at most; 0: all.
    """
    if any(span.running < 1.0 or span.seconds <= 0.0 or span.generated_tokens < 0.0 for span in window.spans):
        return None
    busy_s = predicted_s = predicted_j = 0.0
    for span in window.spans:
        chunks = _chunks(span, chunk_tokens)
        making = _making_tokens(span, chunks)
        t_s, watts = _mean_iteration(span, costs, chunks, making)
        busy_s += making * span.seconds
        predicted_s += span.generated_tokens * t_s
        predicted_j += watts * span.seconds
    if predicted_s <= 0.0:
        return None
    joules = window.joules
    found = Ratio(busy_s / predicted_s, None if joules is None else joules / predicted_j)
    return found if _believable(found.time) and (found.power is None or _believable(found.power)) else None


def _chunks(span: Span, chunk_tokens: int) -> float:
    """Returns the iterations that take in a prompt, on the mean: the last chunk is half a one."""
    if not chunk_tokens or span.prompts <= 0.0:
        return 1.0
    return max(1.0, span.prompt_tokens / span.prompts / chunk_tokens + 0.5)


def _making_tokens(span: Span, chunks: float) -> float:
    """Returns how many of the running sequences make a token in an iteration: all but those whose prompt goes on."""
    if span.generated_tokens <= 0.0:
        return span.running
    started = span.prompts * span.running / (span.generated_tokens + span.prompts * (chunks - 1.0))  # an iteration
    return span.running - started * (chunks - 1.0)


def _mean_iteration(span: Span, costs: IterationCosts, chunks: float, making: float) -> tuple[float, float]:
    """Returns seconds and watts of the mean of iterations with and without prompts, each prompt in `chunks` of them.

    Prompts come at random: some iterations take in several chunks, others none.
    """
    decode = Totals(decodes=making, context_tokens=span.kv_tokens)
    without = costs.iteration_of(span.mhz, decode)
    if span.prompts <= 0.0 or span.prompt_tokens <= 0.0 or span.generated_tokens <= 0.0:
        return without.t_s, without.watts
    taken = chunks * span.prompts * making / span.generated_tokens  # chunks in an iteration
    share = 1.0 - math.exp(-taken)
    prefills = taken / share
    each = span.prompt_tokens / span.prompts
    new = prefills * each / chunks
    mixed = replace(decode, new_tokens=new, pairs=new * each / 2.0, prefills=prefills)
    beside = costs.iteration_of(span.mhz, mixed)
    mean_s = (1.0 - share) * without.t_s + share * beside.t_s
    return mean_s, ((1.0 - share) * without.energy_j + share * beside.energy_j) / mean_s


def _believable(value: float) -> bool:
    low, high = BOUNDS
    return low / 2.0 < value < high * 2.0


def _knots(window: Window, gpu: GpuParams) -> dict[int, float]:
    """Returns by knot how much of the window was near its clock; together 1, less where few sequences ran."""
    running = math.fsum(span.running * span.seconds for span in window.spans) / window.seconds
    counts = min(1.0, running / FULL_RUNNING)
    parts: dict[int, float] = {}
    for span in window.spans:
        below, share = place(gpu, gpu.clamp_mhz(span.mhz))
        part = counts * span.seconds / window.seconds
        parts[below] = parts.get(below, 0.0) + (1.0 - share) * part
        parts[below + 1] = parts.get(below + 1, 0.0) + share * part
    return parts


@dataclass(frozen=True, slots=True)
class _Sums:
    """Weights and weighted logarithms of ratios at each knot; what says how far windows scatter is over all of them."""

    weight: tuple[float, ...] = (0.0,) * KNOTS
    log: tuple[float, ...] = (0.0,) * KNOTS
    log_square: float = 0.0  # sum of weight times logarithm squared
    weight_square: float = 0.0  # sum of windows' weights squared

    def faded(self, kept: float) -> _Sums:
        weight, log = tuple(w * kept for w in self.weight), tuple(x * kept for x in self.log)
        return _Sums(weight, log, self.log_square * kept, self.weight_square * kept**2)

    def with_one(self, parts: Mapping[int, float], value: float) -> _Sums:
        """Adds a window. `parts`: by knot, how much of it was near its clock."""
        weight, log = list(self.weight), list(self.log)
        for knot, part in parts.items():
            weight[knot] += part
            log[knot] += part * math.log(value)
        whole = math.fsum(parts.values())
        log_square = self.log_square + whole * math.log(value) ** 2
        return _Sums(tuple(weight), tuple(log), log_square, self.weight_square + whole**2)

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> _Sums:
        return cls(tuple(state["weight"]), tuple(state["log"]), state["log_square"], state["weight_square"])

    @property
    def windows(self) -> float:
        return math.fsum(self.weight)

    @property
    def mean(self) -> float:
        """The factor over all clocks; 1 without windows."""
        return math.exp(math.fsum(self.log) / self.windows) if self.windows > 0.0 else 1.0

    def beyond(self, share: float) -> bool:
        """Says whether the mean is off by more than a share, either way, and not by the scatter of the windows."""
        if self.windows < LEAST_WINDOWS:
            return False
        mean = math.fsum(self.log) / self.windows
        variance = max(self.log_square / self.windows - mean**2, NOISE**2)
        standard_error = math.sqrt(variance * self.weight_square) / self.windows
        return abs(mean) - SURE * standard_error > math.log1p(share)

    def factors(self) -> tuple[float, ...]:
        """A knot with few windows of its own takes after all of them."""
        overall = math.log(self.mean)
        low, high = BOUNDS
        found = [
            math.exp((own + _PRIOR_WINDOWS * overall) / (weight + _PRIOR_WINDOWS))
            for own, weight in zip(self.log, self.weight, strict=True)
        ]
        return tuple(min(max(value, low), high) for value in found)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The ratios of one configuration so far. A value: `add` returns another one."""

    at_s: float | None = None
    time: _Sums = _Sums()
    power: _Sums = _Sums()

    def add(self, window: Window, found: Ratio, gpu: GpuParams) -> Calibration:
        """Returns the calibration with one more window, older ones faded by the time between."""
        passed_s = 0.0 if self.at_s is None else max(0.0, window.at_s - self.at_s)
        kept = 0.5 ** (passed_s / MEMORY_S)
        parts = _knots(window, gpu)
        time, power = self.time.faded(kept), self.power.faded(kept)
        return Calibration(
            at_s=window.at_s if self.at_s is None else max(self.at_s, window.at_s),
            time=time.with_one(parts, found.time),
            power=power if found.power is None else power.with_one(parts, found.power),
        )

    def state(self) -> dict[str, Any]:
        """Returns itself as a JSON object."""
        return asdict(self)

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Calibration:
        """Reads what `state` wrote; an empty object is a calibration without windows."""
        sums = {name: _Sums.of_state(known) for name in ("time", "power") if (known := state.get(name))}
        return cls(state.get("at_s"), **sums)

    @property
    def drift(self) -> tuple[float, float]:
        """Mean measured over predicted, less 1: of time, and of power."""
        return self.time.mean - 1.0, self.power.mean - 1.0

    @property
    def drifted(self) -> bool:
        """True where there is enough to say so, and a new profile is worth its while."""
        return self._off(DRIFT)

    def residual(self, in_force: Correction | None = None) -> Correction | None:
        """Returns the correction that follows; what is in force stays while it is near enough."""
        if self.time.windows < LEAST_WINDOWS or (in_force is None and not self._off(BEGIN)):
            return in_force
        power = self.power.factors() if self.power.windows >= LEAST_WINDOWS else (1.0,) * KNOTS
        found = Correction(self.time.factors(), power, Source.CALIBRATED, self.at_s)
        if in_force is None:
            return found
        pairs = zip((*found.time, *found.power), (*in_force.time, *in_force.power), strict=True)
        return found if any(abs(new / old - 1.0) > LEAST_CHANGE for new, old in pairs) else in_force

    def _off(self, share: float) -> bool:
        """Says whether time or power is surely off by more than a share, either way."""
        return self.time.beyond(share) or self.power.beyond(share)
