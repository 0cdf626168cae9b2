"""DynaServe's motivation (2.4 and 4.2): what batches take (fig. 6), and utilization at saturation (table 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import numpy as np

from core.engine.engine_model import EngineModel, engine_model
from core.engine.engine_vector import Floats, iterations
from core.simulator.lab.experiment import Experiment, Row, Run
from core.simulator.lab.measures import Calculated, Results, figure
from core.simulator.lab.papers.dynaserve import SEPARATE_AND_TOGETHER, SHAPES, Throughput, saturated, settings_of
from core.simulator.lab.why import NOT_KNOWN, Claim, Why, why

_A100 = "A100-80GB"
_ENGINE = "vllm-v1"
_DECODES = np.arange(1.0, 257.0)
_SHORT, _LONG = (128.0, 0.030), (1024.0, 0.050)  # tokens of context of each sequence, and limit in s (fig. 6)
_PROMPT = 512.0  # tokens, a chunk beside the decodes


@cache
def _batches(context: float, prompt: float) -> tuple[Floats, Floats]:
    """Returns time in s and FLOP/s of batches of 1 to 256 decodes, beside a chunk of `prompt` tokens."""
    worker = engine_model("Llama3-8B", _A100, 1, _ENGINE)
    k, top = worker.constants, np.array([worker.gpu_params.f_max])
    t_s = iterations(worker, top, prefill_tokens=prompt, decodes=_DECODES, context_tokens=_DECODES * context).t_s
    rows = _DECODES + (prompt > 0.0)
    pairs = prompt * prompt / 2.0 + _DECODES * context
    flop = k.flop_per_token * (prompt + _DECODES) + k.flop_per_row * rows + k.flop_per_attention * pairs
    return t_s, flop / t_s


def _within(prompt: float = _PROMPT, at: tuple[float, float] = _LONG) -> float:
    """Returns how many decodes a batch holds within the limit; 0: none."""
    context, limit_s = at
    return float((_batches(context, prompt)[0] <= limit_s).sum())


def _in_limit() -> float:
    return 100.0 * _within(0.0) / _DECODES.size


def _steps(context: float, prompt: float, *, down: bool) -> float:
    speeds = _batches(context, prompt)[1][7::8]
    return 100.0 * float(np.mean([(after < before) is down for before, after in pairwise(speeds.tolist())]))


def _alone_ms() -> float:
    """Returns how long a chunk takes beside one decode."""
    return 1e3 * float(_batches(_LONG[0], _PROMPT)[0][0])


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU of table 1: what part of a request it does."""

    policy: str
    shape: str
    prefills: bool
    decodes: bool

    @property
    def share(self) -> float:
        """The share of the requests: colocation sends each to one of both."""
        return 0.5 if self.prefills and self.decodes else 1.0

    def mfu(self, rps: float) -> float:
        """Returns the model's FLOP as a share of the GPU's peak, in per cent, at so many requests/s of the pair."""
        worker = _worker()
        k = worker.constants
        prompt, output, _ = SHAPES[self.shape]
        first = k.flop_per_token * prompt + k.flop_per_row + k.flop_per_attention * prompt * prompt / 2.0
        context = sum(range(prompt + 1, prompt + output))
        others = (output - 1) * (k.flop_per_token + k.flop_per_row) + k.flop_per_attention * context
        flop = first * self.prefills + others * self.decodes
        return 100.0 * rps * self.share * flop / worker.gpu_params.peak_flops


def _worker() -> EngineModel:
    return engine_model("Qwen2.5-14B", _A100, 1, _ENGINE)


@dataclass(frozen=True, slots=True)
class Mfu:
    """The model's FLOP as a share of a GPU's peak, in per cent, by what the run finished."""

    gpu: _Gpu

    def __call__(self, results: Results) -> float | None:
        rps = Throughput(saturated(self.gpu.policy, self.gpu.shape))(results)
        return None if rps is None else self.gpu.mfu(rps)


_PREFILLS, _DECODES_ALONE, _BOTH = (True, False), (False, True), (True, True)
# Of table 1: the policy, what the GPU does, and of each shape MFU in %, beside the published requests/s.
_MFU = (
    ("pd_disagg", "the one that prefills", _PREFILLS, (43.24, 30.59, 2.09), (0.83, 2.56, 1.68)),
    ("pd_disagg", "the one that decodes", _DECODES_ALONE, (0.19, 7.93, 14.34), (0.83, 2.56, 1.68)),
    ("pd_coloc", "each", _BOTH, (38.94, 21.26, 13.98), (1.49, 2.83, 2.86)),
)
# Of table 1: median TBT in ms and tokens in time in %, of disaggregation, then of colocation.
_GAPS = {
    "8192, 32": ((22.70, 100.0), (309.68, 1.73)),
    "2048, 512": ((47.0, 99.83), (46.86, 84.09)),
    "219, 1467": ((50.63, 99.95), (47.99, 94.46)),
}


def _of_published(pick: Callable[[list[float]], float]) -> float:
    """Returns what the published throughput takes, over the published MFU, picked from all of table 1."""
    return pick(
        [
            _Gpu(policy, shape, *does).mfu(rps) / mfu
            for policy, _, does, every_mfu, every_rps in _MFU
            for shape, mfu, rps in zip(SHAPES, every_mfu, every_rps, strict=True)
        ]
    )


_FEWER_FLOP = why(
    "the published MFU is not of these FLOP: by 2 a parameter and token, and 4 a layer, head dimension and pair of "
    "tokens for attention, the published requests/s alone would be {least} to {most} times it. What it counts is not "
    "known.",
    "table 1",
    least=Claim(Calculated("least FLOP of table 1's throughput over its MFU", partial(_of_published, min)), 1.49),
    most=Claim(Calculated("most FLOP of table 1's throughput over its MFU", partial(_of_published, max)), 1.6),
)


_ALL_LATE = why(
    "nearly all are late in both: the median gap is {median}. What makes them fewer here is not known.",
    median=Claim(figure(saturated("pd_coloc", "8192, 32"), "itl_s", "p50", 1e3), 270.0, "ms"),
)


@dataclass(frozen=True, slots=True)
class Decoding:
    """Works out how many sequences of a shape decode at a time, by Little's law from requests/s and the median gap."""

    policy: str
    shape: str

    def __call__(self, results: Results) -> float | None:
        run = saturated(self.policy, self.shape)
        rps = Throughput(run)(results)
        return None if rps is None else rps * SHAPES[self.shape][1] * float(results[run]["itl_s"]["p50"])


_MORE_AT_A_TIME = why(
    "by Little's law the published pair decodes for 125 sequences at a time when it disaggregates, and for 201 when it "
    "does not; here {disagg} and {coloc} do, on an engine model that serves more.",
    "table 1",
    disagg=Claim(Decoding("pd_disagg", "219, 1467"), 187.0),
    coloc=Claim(Decoding("pd_coloc", "219, 1467"), 359.0),
)
_STEEP = why(
    "it goes steeply with what a chunk takes: beside one decode 512 tokens take {alone}, and with 768 tokens in place "
    "of 512 the engine model has {more} decodes within 50 ms, with 256 {fewer}.",
    alone=Claim(Calculated("milliseconds of 512 tokens beside one decode", _alone_ms), 34.1, "ms"),
    more=Claim(Calculated("decodes beside 768 tokens", partial(_within, 768.0)), 13.0),
    fewer=Claim(Calculated("decodes beside 256 tokens", partial(_within, 256.0)), 200.0),
)


def _mfu_rows() -> tuple[Row, ...]:
    return tuple(
        Row(f"{policy}, {shape}: MFU of {words}", "table 1", "%", mfu, Mfu(_Gpu(policy, shape, *does)), _FEWER_FLOP)
        for policy, words, does, every_mfu, _ in _MFU
        for shape, mfu in zip(SHAPES, every_mfu, strict=True)
    )


def _gap_rows() -> tuple[Row, ...]:
    rows = []
    for shape, both in _GAPS.items():
        for policy, (gap_ms, kept) in zip(SEPARATE_AND_TOGETHER, both, strict=True):
            run = saturated(policy, shape)
            rows += [
                Row(
                    f"{policy}, {shape}: median TBT",
                    "table 1",
                    "ms",
                    gap_ms,
                    figure(run, "itl_s", "p50", 1e3),
                    _MORE_AT_A_TIME,
                ),
                Row(
                    f"{policy}, {shape}: tokens in time",
                    "table 1",
                    "%",
                    kept,
                    figure(run, "itl_in_time", None, 100.0),
                    _ALL_LATE,
                ),
            ]
    return tuple(rows)


def _calculated(label: str, unit: str, published: float, work_out: Callable[[], float], reason: Why = NOT_KNOWN) -> Row:
    return Row(label, "fig. 6", unit, published, Calculated(label, work_out), reason)


DYNASERVE_BATCHES = Experiment(
    name="dynaserve-batches",
    title="DynaServe, table 1 and fig. 6: utilization at saturation, and what batches take",
    scenario="dynaserve-shapes",
    stands_in=(
        "Table 1's shapes at the largest rates that the experiment dynaserve tries; the use of HBM is left out, of "
        "which runs keep no figure. Fig. 6 is of the engine model's Llama3-8B on one A100: the text has one number, "
        "29 decodes, and shapes."
    ),
    runs=tuple(
        Run(saturated(policy, shape), policy, settings_of(shape, SHAPES[shape][2][-1]))
        for shape in SHAPES
        for policy in SEPARATE_AND_TOGETHER
    ),
    rows=(
        *_mfu_rows(),
        *_gap_rows(),
        _calculated("decodes beside 512 tokens of a prompt within 50 ms, context of 1,024", "", 29.0, _within, _STEEP),
        _calculated("batches of decodes alone within 50 ms, context of 1,024", "%", 100.0, _in_limit),
        _calculated(
            "FLOP/s of decodes alone grow with the batch, context of 128, steps that do",
            "%",
            100.0,
            partial(_steps, _SHORT[0], 0.0, down=False),
        ),
        _calculated(
            "FLOP/s beside 512 tokens of a prompt fall with the batch, context of 1,024, steps that do",
            "%",
            100.0,
            partial(_steps, _LONG[0], _PROMPT, down=True),
        ),
    ),
)
