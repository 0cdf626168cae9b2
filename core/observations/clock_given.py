"""Says what limits clock rules act at, how low a clock may go, and what a rule by profile is given of an instance."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from core.algorithms.clock.primal_dual import Curves
from core.algorithms.placement.operator_partitions import weighted_mean
from core.algorithms.placement.sensitivity import operators, sensitivity
from core.controllers.clock.clock_profile import InstanceLoad
from core.controllers.clock.muserve_clock import EARLY_S
from core.controllers.clock.threshold_clock import ThresholdClockObservation
from core.controllers.fleet.explain import least_trusted
from core.engine.engine_model import GPUS, EngineModel
from core.engine.engine_params import GpuParams
from core.engine.iteration import Totals
from core.engine.load_profile import CLOCK_STEP_MHZ, LOWEST_MHZ, Floats, LoadProfile, clocks
from core.engine.profiled_engine import ProfiledEngine
from core.observations.demand.class_arrivals import STRETCH_S
from core.observations.limits import at_factor, class_limits, left_for_tokens_s, planned
from core.observations.mode_profile import Lengths
from core.observations.request.request_configs import TBT_S
from core.policy.knobs import Knobs
from core.ports import EngineLimits
from core.types import ClockObservation, Limits, Source


@dataclass(frozen=True, slots=True)
class ProfileClocks:
    """The clocks that a profile has: `step_mhz` apart, from the one on that the knobs clock_floor and clock_floor_mhz
    say (`profiled_from_mhz`)."""

    step_mhz: float = CLOCK_STEP_MHZ
    floor: str = "gpu"
    floor_mhz: float | None = None

    def of(self, gpu: GpuParams) -> Floats:
        """Returns those of a GPU in MHz, (clocks,), rising."""
        own = gpu.name, gpu.f_min, gpu.f_max
        return clocks(gpu, self.step_mhz, profiled_from_mhz(*own, self.floor, self.floor_mhz))


def shared(limits: Limits, ttft_share: float, tpot_share: float) -> Limits:
    """Returns shares of limits: of TTFT the one, of TPOT and E2E the other."""
    e2e_s = None if limits.e2e_s is None else limits.e2e_s * tpot_share
    return replace(planned(limits, ttft_share, tpot_share), e2e_s=e2e_s)


def clock_limits(slo: Limits, own: Limits, knobs: Knobs) -> Limits:
    """Returns the limits that clocks act at: of each the policy's share of what plans keep, or the class's threshold
    if that is tighter. How loose the policy takes limits goes for both.

    Args:
        slo: The service's objectives.
        own: The class's thresholds.
    """
    kept = shared(class_limits(slo, own, knobs), knobs.clock_ttft_share, knobs.clock_tpot_share)
    return tighter(kept, at_factor(own, knobs.slo_factor))


def tighter(one: Limits, other: Limits) -> Limits:
    """Returns the tighter one of each limit; None where neither has one."""
    pairs = (one.ttft_s, other.ttft_s), (one.tpot_s, other.tpot_s), (one.e2e_s, other.e2e_s)
    return Limits(*(min((limit_s for limit_s in pair if limit_s is not None), default=None) for pair in pairs))


def pace_limits(limits: Limits, long_tokens: float, ttft_share: float, tpot_share: float) -> Limits:
    """Returns what a clock by deadlines keeps of a class's limits.

    A limit on E2E is one on TPOT, for a long answer. Without either the time between tokens is limited to
    throttLL'eM's 0.2 s (V-A): a service without an objective is to be served all the same.

    Args:
        long_tokens: Of a long answer.
    """
    both = limits.tpot_s, left_for_tokens_s(limits, long_tokens)
    tpots_s = [own for own in both if own is not None]
    return planned(Limits(limits.ttft_s, min(tpots_s, default=TBT_S)), ttft_share, tpot_share)


def least_mhz(gpu: str, min_mhz: float, max_mhz: float, floor: str, floor_mhz: float | None) -> float:
    """Returns the lowest clock that a rule may set on a GPU, in MHz.

    Args:
        gpu: Its type.
        min_mhz, max_mhz: What it can be set to.
        floor, floor_mhz: The knobs clock_floor and clock_floor_mhz. Where the engine model does not know the GPU,
            nobody knows where its voltage stops falling either: then it is the GPU's lowest.
    """
    if floor_mhz is None:
        floor_mhz = GPUS[gpu].f_v if floor == "voltage" and gpu in GPUS else min_mhz
    return min(max(floor_mhz, min_mhz), max_mhz)


def profiled_from_mhz(gpu: str, min_mhz: float, max_mhz: float, floor: str, floor_mhz: float | None) -> float:
    """Returns the lowest clock that is profiled, in MHz: the floor's, or as DynamoLLM's where there is none."""
    if floor_mhz is None and floor == "gpu":
        floor_mhz = LOWEST_MHZ
    return least_mhz(gpu, min_mhz, max_mhz, floor, floor_mhz)


def full_tokens(chunk_tokens: int) -> int:
    """Returns the prompt tokens of an iteration with two prompts' chunks: a request's own, and one before it.

    Args:
        chunk_tokens: Of one prompt at most; 0: all that there is room for.
    """
    room = EngineLimits().max_num_batched_tokens
    return min(room, 2 * (chunk_tokens or room))


def curves(profile: LoadProfile, output_tokens: float, batch: float) -> Curves:
    """Returns an engine at each clock of its profile, with `batch` requests under way, by Little's law."""
    under_way = profile.rps * (profile.ttft_s + max(1.0, output_tokens) * profile.tpot_s)

    def at_batch(values: Floats) -> Floats:
        return np.array([np.interp(batch, x, y) for x, y in zip(under_way, values, strict=True)])

    of = (profile.rps, profile.watts, profile.ttft_s, profile.tpot_s)
    return Curves(profile.mhz, *(at_batch(values) for values in of))


def taken_in(full_tokens: int | None, prompt_tokens: float) -> int:
    """Returns how many of the requests that wait the next iteration takes in, so that they are no queue.

    Args:
        full_tokens: Prompt tokens of the iteration that is planned with; None: none is, and all of them wait.
        prompt_tokens: Of a prompt, on the mean.
    """
    return 0 if full_tokens is None else int(full_tokens / max(1.0, prompt_tokens))


@dataclass(frozen=True, slots=True)
class SeenShares:
    """A rule by profile holds a share of a latency seen against its limit: the share that this is of the real one.

    `counts_ttft`: a TTFT is held against its limit. The worst one may be of a class with a wider limit.
    """

    ttft: float
    tpot: float
    counts_ttft: bool


def instance_load(
    seen: ClockObservation, profile: str, load_rps: float | None, taken_in: int, shares: SeenShares
) -> InstanceLoad:
    """Returns what the rule by profile is given of an instance. A profile says nothing of E2E.

    Args:
        profile: The name of its profile in the observation.
        load_rps: Requests a second that come to it; None: not known.
        taken_in: Requests that wait and are no queue (`taken_in`).
    """
    return InstanceLoad(
        instance=seen.instance,
        profile=profile,
        load_rps=load_rps,
        waiting=max(0, seen.waiting - taken_in),
        min_mhz=seen.min_mhz,
        max_mhz=seen.max_mhz,
        limits=replace(seen.limits, e2e_s=None),
        ttft_s=seen.ttft_s * shares.ttft if shares.counts_ttft and seen.ttft_s is not None else None,
        tpot_s=None if seen.tpot_s is None else seen.tpot_s * shares.tpot,
    )


class RecentRate:
    """The rate at which requests come to an instance, as the rule by profile is given it: of what came recently, or of
    a longer time if that is higher, since a lull of one period is no smaller load."""

    def __init__(self) -> None:
        self._periods: deque[tuple[float, float]] = deque()  # requests and seconds of periods, the newest last
        self._mean_rps: float | None = None

    def next_rps(self, came: float, passed_s: float, memory_s: float) -> float:
        """Returns the rate in requests/s of the last STRETCH_S at least, or of about `memory_s` if that is higher.

        A shorter stretch tells chance from load no more.

        Args:
            came: Requests since it was last asked for, or since the instance began.
            passed_s: The seconds of that time, above 0.
        """
        own_rps = came / passed_s
        mean_rps = own_rps if self._mean_rps is None else self._mean_rps
        self._mean_rps = mean_rps + min(1.0, passed_s / memory_s) * (own_rps - mean_rps)
        self._periods.append((came, passed_s))
        while sum(seconds for _, seconds in self._periods) - self._periods[0][1] >= STRETCH_S - EARLY_S:
            self._periods.popleft()
        now_rps = sum(requests for requests, _ in self._periods) / sum(seconds for _, seconds in self._periods)
        return max(now_rps, self._mean_rps)


def mean_iteration(lengths: Lengths, batch: float) -> Totals:
    """Returns the mean iteration of a batch of requests: a prompt starts for each output that ends (`steady_state`)."""
    output = max(1.0, lengths.output_tokens)
    starts = batch / output
    return Totals(
        new_tokens=starts * lengths.prompt_tokens,
        pairs=starts * lengths.prompt_tokens**2 / 2.0,
        prefills=starts,
        decodes=batch,
        context_tokens=batch * (lengths.prompt_tokens + output / 2.0),
    )


def latency_weights(worker: EngineModel, lengths: Lengths, batch: float) -> dict[str, float]:
    """Returns the share of each latency that goes with the clock (mu-Serve 3.1): of a prompt alone (ttft), of a decode
    at this batch (tpot), and of the mean iteration (e2e)."""
    return {name: weighted_mean(operators(worker, totals)) for name, totals in _iterations(lengths, batch).items()}


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """`weights`: the share of each latency (ttft, tpot, e2e) that goes with the clock, and `sources` what it rests on;
    empty: not known."""

    weights: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)


def latency_sensitivity(worker: EngineModel | ProfiledEngine, lengths: Lengths, batch: float) -> Sensitivity:
    """Returns how an engine's latencies react to the clock: of one that was profiled as it was measured, its iterations
    at the top clock and at half of it; of another as the engine model scores its operators.

    A profile times whole iterations. vLLM tells no times of layers, so that operators are the model's alone.
    """
    if isinstance(worker, EngineModel):
        modelled = latency_weights(worker, lengths, batch)
        return Sensitivity(modelled, dict.fromkeys(modelled, Source.MODELLED))
    top = worker.gpu_params.f_max
    weights, sources = {}, {}
    for name, totals in _iterations(lengths, batch).items():
        default, half = (worker.iteration_of(mhz, totals) for mhz in (top, top / 2.0))
        weights[name] = min(1.0, sensitivity(default.t_s, half.t_s))
        sources[name] = least_trusted((default.source, half.source))
    return Sensitivity(weights, sources)


def _iterations(lengths: Lengths, batch: float) -> dict[str, Totals]:
    """Returns the iteration that each latency is a matter of."""
    mean = mean_iteration(lengths, batch)
    return {
        "ttft": Totals.plain(lengths.prompt_tokens, 0.0, 0.0),
        "tpot": Totals(decodes=mean.decodes, context_tokens=mean.context_tokens),
        "e2e": mean,
    }


def with_use(seen: ClockObservation, kv_usage: float | None, max_num_seqs: int | None) -> ThresholdClockObservation:
    """Returns what the rule by thresholds is given of an instance: with the share of its busiest resource, KV cache or
    places in the batch; None: of one of them it is not known."""
    if kv_usage is None or max_num_seqs is None:
        return ThresholdClockObservation(seen, None)
    return ThresholdClockObservation(seen, max(kv_usage, seen.running / max_num_seqs))
