"""DynaServe's global decision: whether, and where, to cut requests into two micro-requests (section 4.1, Algorithm 1).

A request of P prompt tokens and D output tokens has L = P + D; a split s in 0..L gives tokens 1..s to one instance and
the rest to another. s = P is disaggregation of prefill and decode, s = 0 or s = L colocation. The text of the paper has
lost the listing; its prose says: start at P / L, bisect on the difference of the two instances' execution times, at
most 6 probes. Its insight 1 has rates beside times: "balancing request throughput or execution time".

Here it is rates (`sustained_rates`): a probe asks how many requests a second both instances sustain if all are cut
there. Times at which present queues end do not tell that: a few long answers end late and are little work. Whole
requests on either instance are among what is compared, and they stay whole unless a cut sustains clearly more. With
tuned chunks that is where the limit on the gap between tokens is short beside a pass: then an instance without decodes,
which no limit holds up, prefills more than two that do both.

The margin of 20 tokens on the predicted output is the paper's (section 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from core.algorithms.split import sustained_rates, virtual_passes
from core.algorithms.split.request_mix import RequestMix
from core.algorithms.split.sustained_rates import Steady
from core.algorithms.split.virtual_passes import COST_COLUMNS, Floats, Ints
from core.engine.engine_model import MAX_SEQUENCES, EngineModel
from core.engine.iteration import Totals

_SCALE_RANGE = (0.1, 10.0)  # a measurement further off than this tells of a stall, not of the instance


class SplitPolicy(StrEnum):
    DYNAMIC = "dynamic"
    DISAGGREGATED = "disaggregated"  # always at the end of the prompt
    COLOCATED = "colocated"  # never


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """`tolerance`: share by which a cut must sustain more than whole requests do."""

    policy: SplitPolicy = SplitPolicy.DYNAMIC
    max_probes: int = 6
    margin_tokens: int = 20
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        if self.max_probes < 1 or self.margin_tokens < 0 or self.tolerance < 0.0:
            raise ValueError("a split needs max_probes >= 1, margin_tokens >= 0 and tolerance >= 0")


@dataclass(frozen=True, slots=True, eq=False)
class PassCosts:
    """The costs of an instance's pass at a clock, and its bounds. Make it with `pass_costs`, which caches."""

    values: Floats  # by COST_COLUMNS
    decode_s: Floats

    def with_budget(self, tokens: int) -> PassCosts:
        """Returns them with another token budget."""
        values = self.values.copy()
        values[virtual_passes.TOKEN_BUDGET] = tokens
        return PassCosts(values, self.decode_s)


@lru_cache(maxsize=1024)
def pass_costs(instance: EngineModel, mhz: float, token_budget: int, max_sequences: int = MAX_SEQUENCES) -> PassCosts:
    """Computes the costs of an instance at a clock, with the token budget of a pass and its request cap.

    Raises:
        ValueError: A budget or cap below 1, or a model that does not fit its GPUs.
    """
    if token_budget < 1 or max_sequences < 1 or not instance.fits:
        raise ValueError("an instance needs a token budget and a request cap from 1, and room for its model")
    k, g = instance.constants, instance.gpu_params
    f = g.clamp_mhz(mhz)
    r, x = f / g.f_max, f / g.f_bw
    bandwidth = k.bandwidth * x / (1.0 + x**4) ** 0.25
    values = {
        "flop_per_token": k.flop_per_token,
        "flop_per_row": k.flop_per_row,
        "flop_per_attention": k.flop_per_attention,
        "stream_bytes": k.dense_bytes + k.head_bytes,
        "expert_bytes": k.expert_bytes,
        "expert_miss": k.expert_miss,
        "activation_bytes": k.activation_bytes,
        "compute": k.compute * r,
        "bandwidth": bandwidth,
        "p_norm": g.p_norm,
        "eff_attn": g.eff_attn,
        "fixed_s": k.ar_fixed_s + k.layers_s * (g.k_sm / r + 1.0 - g.k_sm),
        "ar_per_token_s": k.ar_per_token_s,
        "launch_s": k.launch_s,
        "host_s": k.host_s,
        "seq_s": k.seq_s,
        "token_budget": token_budget,
        "max_sequences": max_sequences,
        "kv_capacity": instance.kv_capacity_tokens,
        "kv_token_s": k.kv_bytes / (bandwidth * g.eff_kv),
    }
    columns = np.array([values[name] for name in COST_COLUMNS], dtype=np.float64)
    if k.second is not None or instance.correction is not None:
        _slow_down(columns, instance, f)
    table = virtual_passes.decode_table(columns)
    columns.setflags(write=False)
    table.setflags(write=False)
    return PassCosts(columns, table)


_TYPICAL = Totals(512.0, 0.0, 512.0**2 / 2.0, 1.0, 16.0, 16.0 * 1260.0)


def _slow_down(columns: Floats, instance: EngineModel, mhz: float) -> None:
    """Makes passes as much longer, all alike, as a typical one is by the engine model: the passes' form is the first
    set's, without corrections."""
    c, t = dict(zip(COST_COLUMNS, range(columns.size), strict=True)), _TYPICAL
    bare_s = virtual_passes.gpu_s(
        columns, t.new_tokens, t.cached_tokens, t.pairs, t.prefills, t.decodes, t.context_tokens
    )
    bare_s += columns[c["host_s"]] + columns[c["seq_s"]] * (t.decodes + t.prefills)
    longer = instance.iteration_of(mhz, t).t_s / bare_s
    for name in ("fixed_s", "ar_per_token_s", "launch_s", "host_s", "seq_s", "kv_token_s"):
        columns[c[name]] *= longer
    for name in ("compute", "bandwidth"):
        columns[c[name]] /= longer


@dataclass(frozen=True, slots=True, eq=False)
class Backlog:
    """An instance's work: micro-requests in order of admission, the first `admitted` of them in its batch.

    A row of `work` is (tokens to prefill, decode passes after them, tokens in the KV cache). `lead_s` is the rest of
    the iteration in flight, `scale` the instance's calibration, `steady` the instance under a constant load.
    """

    costs: PassCosts
    work: Ints  # (N, 3)
    admitted: int
    steady: Steady
    lead_s: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(
        cls,
        costs: PassCosts,
        work: ArrayLike,
        admitted: int,
        lead_s: float = 0.0,
        scale: float = 1.0,
        steady: Steady | None = None,
    ) -> Backlog:
        """Checks what it is given, and leaves out rows without work. Raises ValueError."""
        rows = np.asarray(work, dtype=np.int64).reshape(-1, 3)
        if (rows < 0).any() or not 0 <= admitted <= len(rows):
            raise ValueError("a backlog's tokens are from 0, and what is admitted is part of it")
        has_work = rows[:, 0] + rows[:, 1] > 0
        rows, admitted = rows[has_work], int(np.count_nonzero(has_work[:admitted]))
        if admitted >= costs.decode_s.size:
            raise ValueError(f"{admitted} admitted requests are more than the instance's cap")
        if lead_s < 0.0 or scale <= 0.0:
            raise ValueError("lead_s is from 0 and scale above it")
        return cls(costs, rows, admitted, steady or Steady(costs.values, 0.0, float(scale)), lead_s, scale)

    def seconds(self, part: tuple[int, int, int], to_first_token: bool) -> float:
        """Returns the seconds until all work is done, or no prompt is left, if a part is added last."""
        c = self.costs
        return virtual_passes.seconds_of(
            c.values, c.decode_s, self.work, self.admitted, float(self.lead_s), float(self.scale), part, to_first_token
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """Says how a stream of requests of one mix is served. `prompt_share` and `output_share`: of each request's tokens,
    those that its first instance does; both 1: all of it.

    `rps` is what that sustains, `whole_rps` what whole requests on all instances would.
    """

    prompt_share: float
    output_share: float
    rps: float
    whole_rps: float
    probes: int

    @property
    def whole(self) -> bool:
        """True where one instance does everything."""
        return self.prompt_share >= 1.0 and self.output_share >= 1.0

    def tokens(self, prompt: int, total: int) -> int:
        """Returns after how many of its tokens a request is cut."""
        return round(self.prompt_share * prompt + self.output_share * (total - prompt))


WHOLE, PROMPT = Cut(1.0, 1.0, 0.0, 0.0, 0), Cut(1.0, 0.0, 0.0, 0.0, 0)


def best_cut(first: Steady, second: Steady, counts: tuple[int, int], mix: RequestMix, config: SplitConfig) -> Cut:
    """Decides how requests are cut between two groups of so many instances, each of which is like the one given.

    They stay whole unless a cut sustains more of a stream of the mean request, by the share `tolerance`.
    """
    if config.policy is SplitPolicy.COLOCATED:
        return WHOLE
    if config.policy is SplitPolicy.DISAGGREGATED:
        return PROMPT
    prompt = max(1, round(mix.prompt_tokens))
    total = prompt + max(1, round(mix.output_tokens))
    split, rps, whole_rps, probes = sustained_rates.best_cut(first, second, counts, prompt, total, config.max_probes)
    if rps <= (1.0 + config.tolerance) * whole_rps:
        return Cut(1.0, 1.0, whole_rps, whole_rps, probes)
    return Cut(min(split, prompt) / prompt, max(0, split - prompt) / (total - prompt), rps, whole_rps, probes)


def total_tokens(prompt_tokens: int, predicted_tokens: int, config: SplitConfig, max_tokens: int | None = None) -> int:
    """Returns L: the tokens of a request with the margin on its predicted output, up to `max_tokens`.

    Raises:
        ValueError: There is no token of prompt or of output.
    """
    if prompt_tokens < 1 or predicted_tokens < 1:
        raise ValueError("a request has at least one token of prompt and one of output")
    output = predicted_tokens + config.margin_tokens
    return prompt_tokens + (output if max_tokens is None else max(1, min(output, max_tokens)))


def finish_s(backlog: Backlog, part: tuple[int, int, int] = (0, 0, 0)) -> float:
    """Returns the seconds from now until an instance will have done all its work and `part`."""
    return backlog.seconds(part, False)


def first_token_s(backlog: Backlog, prefill_tokens: int) -> float:
    """Returns the seconds from now until a prompt of so many tokens is done with that joins an instance's queue now."""
    return backlog.seconds((prefill_tokens, 1, 0), True)


def burden_s(backlog: Backlog, prefill_tokens: int) -> float:
    """Returns how long a request would wait at an instance for its own first token, plus the seconds that what the
    instance has to do takes of it: the least is where the request is best, and where it is least in the way."""
    return first_token_s(backlog, prefill_tokens) + backlog.scale * sustained_rates.work_s(
        backlog.costs.values, backlog.work
    )


def calibrated(scale: float, predicted_s: float, measured_s: float, gain: float = 0.1) -> float:
    """Returns an instance's scale after one more measurement: it moves by `gain` towards measured over predicted time.

    `predicted_s` is the time of the same work at scale 1. Of a stall (a ratio off by more than tenfold) nothing is
    learned.

    Raises:
        ValueError: A time is not above 0.
    """
    if predicted_s <= 0.0 or measured_s <= 0.0:
        raise ValueError("times are longer than nothing")
    ratio = measured_s / predicted_s
    if not _SCALE_RANGE[0] <= ratio <= _SCALE_RANGE[1]:
        return scale
    return float(scale * (ratio / scale) ** gain)
