"""DynaServe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from core.algorithms.split.kv_transfer import Link, exposure
from core.engine.engine_model import engine_model
from core.engine.engine_vector import iterations
from core.engine.steady_state import largest_batch
from core.simulator.lab.experiment import Experiment, Row, Run
from core.simulator.lab.measures import Calculated, Figures, Measure, Results, figure
from core.simulator.lab.papers.dynaserve_cuts import ITL_LIMIT_S, most_of_cuts
from core.simulator.lab.why import Claim, why

POLICIES = ("pd_coloc", "pd_disagg", "dynaserve")
# Prompt and output tokens of table 1, and the rates tried.
SHAPES = {
    "8192, 32": (8192, 32, (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.25, 1.5, 2.0)),
    "2048, 512": (2048, 512, (0.25, 0.5, 0.75, 1.0, 1.25, 1.6, 2.0, 2.5, 3.0, 3.6, 4.3, 5.0, 6.0)),
    "219, 1467": (219, 1467, (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.75, 6.5, 8.0)),
}
HYBRID = "half 8192, 32 and half 2048, 512"  # table 2
_HYBRID_RPS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
_HALVES = "{{quantiles: {{shares: [0, 0.4999, 0.5001, 1], tokens: [{0}, {0}, {1}, {1}]}}}}"  # the longer prompts
_HYBRID_LENGTHS = f"{{prompt: {_HALVES.format(2048, 8192)}, output: {_HALVES.format(32, 512)}, correlation: -1}}"
# Tokens of an iteration: the paper tunes colocation's between 256 and 2048. Batches with a limit hold it at any size.
_CHUNKS = {"pd_coloc": (256, 512, 2048), "dynaserve": (256, 2048)}
WHOLE = 2048
_DELAY_S = 2.0  # a rate is sustained while the median request waits no longer (Sarathi-Serve, OSDI 2024, section 5)


def label_of(policy: str, shape: str, rate_rps: float, chunk: int = WHOLE) -> str:
    """Returns the label of a run of a shape."""
    return f"{policy}, {shape}, {rate_rps:g}/s" + ("" if chunk == WHOLE else f", chunks of {chunk}")


def settings_of(shape: str, rate_rps: float, chunk: int = WHOLE) -> tuple[str, ...]:
    """Returns the settings of a shape\'s load, and of the tokens of an iteration."""
    chunks = f"fleet.tokens_per_iteration={chunk}"
    if shape == HYBRID:
        load = f"generate: poisson, rate_rps: {rate_rps:g}, duration_s: 200, lengths: {_HYBRID_LENGTHS}"
        return f"workload={{{load}}}", chunks
    prompt, output, _ = SHAPES[shape]
    lengths = f"workload.prompt_tokens={prompt}", f"workload.output_tokens={output}"
    return *lengths, f"workload.rate_rps={rate_rps:g}", chunks


def _rates(shape: str) -> tuple[float, ...]:
    return _HYBRID_RPS if shape == HYBRID else SHAPES[shape][2]


def _sweep() -> tuple[Run, ...]:
    return tuple(
        Run(label_of(policy, shape, rate, chunk), policy, settings_of(shape, rate, chunk))
        for shape in (*SHAPES, HYBRID)
        for policy in POLICIES
        for chunk in _CHUNKS.get(policy, (WHOLE,))
        for rate in _rates(shape)
    )


def _of(results: Results, policy: str, shape: str) -> list[list[tuple[float, Figures]]]:
    """Returns figures by rate, for each size of chunks that was tried."""
    chunks = _CHUNKS.get(policy, (WHOLE,))
    return [[(rate, results[label_of(policy, shape, rate, chunk)]) for rate in _rates(shape)] for chunk in chunks]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest rate tried that is sustained, up to which 99 % of gaps are within the limit, in requests/s.

    `chunk`: of runs with chunks of so many tokens alone; None: of the best size.
    """

    policy: str
    shape: str
    chunk: int | None = None

    def __call__(self, results: Results) -> float | None:
        sustained = []
        for chunk, sweep in zip(_CHUNKS.get(self.policy, (WHOLE,)), _of(results, self.policy, self.shape), strict=True):
            if self.chunk not in (None, chunk):
                continue
            alone_s = sweep[0][1]["ttft_s"]["p50"]
            for rate, own in sweep:
                if own["itl_s"]["p99"] > ITL_LIMIT_S or own["ttft_s"]["p50"] - alone_s > _DELAY_S:
                    break
                sustained.append(rate)
        return max(sustained, default=None)


@dataclass(frozen=True, slots=True)
class Goodput:
    """The most tokens/s in time, over all rates tried and sizes of chunks."""

    policy: str
    shape: str

    def __call__(self, results: Results) -> float | None:
        sweeps = _of(results, self.policy, self.shape)
        return max(own["goodput_tokens_s"] for sweep in sweeps for _, own in sweep) or None


@dataclass(frozen=True, slots=True)
class Ratios:
    """DynaServe's measure over another's, picked from those of all shapes in which both have one."""

    measure: Callable[[str, str], Measure]  # of policy and shape
    against: str
    pick: Callable[[list[float]], float]
    shapes: tuple[str, ...] = tuple(SHAPES)

    def __call__(self, results: Results) -> float | None:
        both = [[self.measure(name, shape)(results) for name in ("dynaserve", self.against)] for shape in self.shapes]
        ratios = [mine / other for mine, other in both if mine is not None and other]
        return self.pick(ratios) if ratios else None


@dataclass(frozen=True, slots=True)
class Throughput:
    """Requests/s that a run finished."""

    of: str

    def __call__(self, results: Results) -> float | None:
        own = results[self.of]
        return float(own["finished"] / own["simulated_s"]) if own["simulated_s"] else None


@dataclass(frozen=True, slots=True)
class Faster:
    """Our throughput over the published one, picked from all rows of table 1."""

    pick: Callable[[list[float]], float]

    def __call__(self, results: Results) -> float | None:
        found = []
        for shape, both in _TABLE_1.items():
            for policy, (rps, _) in zip(SEPARATE_AND_TOGETHER, both, strict=True):
                own = Throughput(saturated(policy, shape))(results)
                found += [] if own is None else [own / rps]
        return self.pick(found) if found else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def saturated(policy: str, shape: str) -> str:
    """Returns the label of the run at the largest rate, beyond what the pair can do."""
    return label_of(policy, shape, SHAPES[shape][2][-1])


def _capacities(mark: str, policy: str, written: Iterable[float], chunk: int | None = None) -> dict[str, Claim]:
    shapes = zip(SHAPES, written, strict=True)
    return {f"{mark}{n}": Claim(Capacity(policy, shape, chunk), rps) for n, (shape, rps) in enumerate(shapes)}


_MIXED, _MIXED_RPS = "2048, 512", 5.0
LONG = "219, 1467"
_WHOLE_SHAPES = (*((prompt, output) for prompt, output, _ in SHAPES.values()), (5120, 272))  # the last: the mix's mean
_CHUNKS_ARE_CHEAP = why(
    "with chunks of 512 tokens colocation holds 100 ms at {tuned0}, {tuned1} and {tuned2} requests/s of the three "
    "shapes, with vLLM's 2,048 at {whole0}, {whole1} and {whole2}, dynaserve at {own0}, {own1} and {own2}. More is not "
    "within reach: on the engine model no cut of the shapes, nor of the mix's mean request, sustains more than {bound} "
    "times what whole requests do, in passes that keep the limit. The paper tunes chunks as well and still finds 1.15 "
    "to 3.07; its factors go with chunks that are not tuned, as in its table 1.",
    "fig. 9",
    bound=Claim(Calculated("most that a cut sustains, of whole requests", partial(most_of_cuts, _WHOLE_SHAPES)), 1.02),
    **_capacities("tuned", "pd_coloc", (1.5, 4.3, 6.5), 512),
    **_capacities("whole", "pd_coloc", (0.3, 0.75, 5.0), WHOLE),
    **_capacities("own", "dynaserve", (1.5, 4.3, 6.5)),
)
_NEITHER_IDLES = why(
    "dynaserve leaves these requests whole, so that either instance prefills and decodes: of (2048, 512) it sustains "
    "{own} requests/s and disaggregation {other}, of the mix {own_mix} and {other_mix}. The paper's disaggregation "
    "comes closer; what its pair does beside is not known.",
    own=Claim(Capacity("dynaserve", _MIXED), 4.3),
    other=Claim(Capacity("pd_disagg", _MIXED), 3.6),
    own_mix=Claim(Capacity("dynaserve", HYBRID), 2.0),
    other_mix=Claim(Capacity("pd_disagg", HYBRID), 1.25),
)
_PREEMPTED = why(
    "beyond what the pair can do, requests lose their cache to others ({lost} times at disaggregation's 6 requests/s "
    "of (2048, 512)) and are prefilled again. At 3.6 and 2.5 requests/s, where they lose it {kept} and {kept_long} "
    "times, disaggregation's P99 TBT is {gap} and {gap_long}.",
    lost=Claim(figure(saturated("pd_disagg", _MIXED), "preemptions"), 203.0),
    kept=Claim(figure(label_of("pd_disagg", _MIXED, 3.6), "preemptions"), 0.0, by=5.0),
    kept_long=Claim(figure(label_of("pd_disagg", LONG, 2.5), "preemptions"), 0.0, by=5.0),
    gap=Claim(figure(label_of("pd_disagg", _MIXED, 3.6), "itl_s", "p99", 1e3), 51.0, "ms"),
    gap_long=Claim(figure(label_of("pd_disagg", LONG, 2.5), "itl_s", "p99", 1e3), 60.0, "ms"),
)
_NEWER = why(
    "the engine model is vLLM V1's, the paper's engine 0.7.2: all that table 1 has is served {least} to {most} times "
    "as fast.",
    least=Claim(Faster(min), 1.13),
    most=Claim(Faster(max), 1.35),
)
_UNLIMITED, _UNLIMITED_MORE = "dynaserve without limits on batches", "dynaserve without limits on batches, 8/s"
_LOAD = why(
    "not known. The paper does not tell the load, but it hardly goes with that: at 8 requests/s of (2048, 512) in "
    "place of 5 {share} are in time.",
    share=Claim(figure(_UNLIMITED_MORE, "itl_in_time", None, 100.0), 81.8, "%"),
)

SEPARATE_AND_TOGETHER = ("pd_disagg", "pd_coloc")
_TABLE_1 = {  # at saturation: requests/s and P99 TBT in ms of disaggregation, then of colocation
    "8192, 32": ((0.83, 58.09), (1.49, 352.93)),
    "2048, 512": ((2.56, 65.11), (2.83, 336.81)),
    "219, 1467": ((1.68, 74.47), (2.86, 162.67)),
}


def _table_1() -> tuple[Row, ...]:
    rows = []
    for shape, both in _TABLE_1.items():
        for policy, (rps, tbt_ms) in zip(SEPARATE_AND_TOGETHER, both, strict=True):
            run = saturated(policy, shape)
            gaps_ms = figure(run, "itl_s", "p99", 1e3)
            rows += [
                Row(f"{policy}, {shape}: throughput", "table 1", "requests/s", rps, Throughput(run), _NEWER),
                Row(f"{policy}, {shape}: P99 TBT", "table 1", "ms", tbt_ms, gaps_ms, _PREEMPTED),
            ]
    return tuple(rows)


_CHUNK_TOKENS = 128


@cache
def _transfer_removed() -> float:
    """Returns the per cent of the exposed transfer that chunks take away, of the long shape cut in half over 25 GB/s
    (6.6).

    The first half is prefilled alone and generates beside 63 others.
    """
    prompt, output = (int(tokens) for tokens in LONG.split(", "))
    worker = engine_model("Qwen2.5-14B", "A100-80GB", 1, "vllm-v1")
    top = np.array([worker.gpu_params.f_max])
    generated = (prompt + output) // 2 - prompt
    first_s = iterations(worker, top, prefill_tokens=float(prompt)).t_s
    token_s = iterations(worker, top, decodes=64.0, context_tokens=64.0 * (prompt + output) / 2).t_s
    done = prompt + np.arange(generated + 1)
    link = Link(25e9)  # one of the paper's 200 Gbit/s NICs
    found = exposure(done, first_s + token_s * np.arange(generated + 1), _CHUNK_TOKENS, worker.constants.kv_bytes, link)
    return 100.0 * found.removed


@cache
def _balanced(batch: float | None = None) -> float:
    """Returns the part of 1,024 tokens of answer that the GPU with the prompt generates when both are busy as long
    (fig. 5).

    The prompt takes 1,024 tokens. `batch`: sequences at a time; None: as many as the KV cache holds.
    """
    tokens = 1024.0
    worker = engine_model("Qwen2.5-14B", "A100-80GB", 1, "vllm-v1")
    top = np.array([worker.gpu_params.f_max])
    batch = largest_batch(worker, tokens, tokens) if batch is None else batch
    first_s = float(iterations(worker, top, prefill_tokens=tokens).t_s[0])
    decode = iterations(worker, top, decodes=batch, context_tokens=1.5 * tokens * batch)
    return 0.5 - first_s / (2.0 * tokens * float(decode.t_s[0]) / batch)


_PART = "part of the answer at which both GPUs are as busy"
_EXPOSED = "exposed transfer that chunks remove"
_BATCH = why(
    "the text has it around 0.3, of batches that are not given: with 64 sequences it is {few}, with 256 {many}.",
    "fig. 5",
    few=Claim(Calculated(f"{_PART}, 64 sequences", partial(_balanced, 64.0)), 0.39),
    many=Claim(Calculated(f"{_PART}, 256 sequences", partial(_balanced, 256.0)), 0.33),
)
_PICKS: tuple[Callable[[list[float]], float], ...] = (_mean, min, max)

DYNASERVE = Experiment(
    name="dynaserve",
    title="DynaServe, tables 1 and 2, fig. 5, 8, 9 and 11: Qwen2.5-14B on two A100 80 GB",
    headlines={
        "capacity against colocation, mean": "capacity against colocation",
        "capacity against disaggregation, mean": "capacity against disaggregation",
    },
    scenario="dynaserve-shapes",
    stands_in=(
        "The three shapes of table 1 for Azure Code, BurstGPT and Mini Reasoning, from which the paper took them, as "
        "Poisson streams of 200 s; the largest rate tried is the saturated one. arXiv Summarization is left out. Table "
        "2's mix is of two of the shapes. Table 3 times the paper's own scheduler; `python -m "
        "benchmarks.controllers_muserve_dynaserve` times ours. The transfer's chunks have 128 tokens, the paper does "
        "not tell its own."
    ),
    runs=(
        *_sweep(),
        Run(_UNLIMITED, "dynaserve {itl_limit_s: 0}", settings_of(_MIXED, _MIXED_RPS)),
        Run(_UNLIMITED_MORE, "dynaserve {itl_limit_s: 0}", settings_of(_MIXED, 8.0)),
    ),
    rows=(
        *(
            Row(
                f"capacity against {name}, {word}", "fig. 9", "times", published, Ratios(Capacity, policy, pick), reason
            )
            for policy, name, figures, reason in (
                ("pd_coloc", "colocation", (2.37, 1.15, 3.07), _CHUNKS_ARE_CHEAP),
                ("pd_disagg", "disaggregation", (1.37, 1.09, 1.67), _NEITHER_IDLES),
            )
            for word, published, pick in zip(("mean", "least", "most"), figures, _PICKS, strict=True)
        ),
        Row(
            "goodput against colocation, at most",
            "fig. 8",
            "times",
            1.91,
            Ratios(Goodput, "pd_coloc", max),
            _CHUNKS_ARE_CHEAP,
        ),
        Row("goodput against disaggregation, at most", "fig. 8", "times", 1.61, Ratios(Goodput, "pd_disagg", max)),
        Row(
            "tokens in time without limits on batches",
            "fig. 11",
            "%",
            52.0,
            figure(_UNLIMITED, "itl_in_time", None, 100.0),
            _LOAD,
        ),
        Row(
            "tokens in time with them",
            "fig. 11",
            "%",
            99.0,
            figure(label_of("dynaserve", _MIXED, _MIXED_RPS), "itl_in_time", None, 100.0),
        ),
        *(
            Row(
                f"the mix: {what} against {name}",
                "table 2",
                "times",
                given,
                Ratios(of, policy, max, (HYBRID,)),
                reason,
            )
            for policy, name, reason, *both in (
                ("pd_coloc", "colocation", _CHUNKS_ARE_CHEAP, (Capacity, 7.4 / 4.6), (Goodput, 473.84 / 316.32)),
                ("pd_disagg", "disaggregation", _NEITHER_IDLES, (Capacity, 7.4 / 5.9), (Goodput, 473.84 / 399.31)),
            )
            for what, (of, given) in zip(("capacity", "goodput"), both, strict=True)
        ),
        Row(_PART, "fig. 5", "", 0.3, Calculated(_PART, _balanced), _BATCH),
        Row(_EXPOSED, "6.6", "%", 94.0, Calculated(_EXPOSED, _transfer_removed)),
        *_table_1(),
    ),
    listed=tuple(saturated(policy, shape) for shape in SHAPES for policy in POLICIES),
)
