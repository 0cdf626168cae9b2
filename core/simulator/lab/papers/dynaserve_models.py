"""DynaServe on larger models (6.2): Qwen2.5-32B on pairs of two A100, Qwen2.5-72B on pairs of four."""

from __future__ import annotations

from dataclasses import dataclass

from core.simulator.lab.experiment import Experiment, Row, Run
from core.simulator.lab.measures import Figures, Results, Steps, figure
from core.simulator.lab.papers.dynaserve import POLICIES, SHAPES, WHOLE
from core.simulator.lab.why import NOT_KNOWN, Claim, why

_MODELS = {"Qwen2.5-14B": 1, "Qwen2.5-32B": 2, "Qwen2.5-72B": 4}  # with their TP degree
_RATES = {"8192, 32": (0.25, 0.5, 1.0, 2.0), "2048, 512": (1.0, 2.0, 4.0, 6.0), "219, 1467": (2.5, 4.0, 6.0, 8.0)}
_TUNED = 512
_CHUNKS = {"pd_coloc": (256, _TUNED, WHOLE)}


def _label(model: str, policy: str, shape: str, rate: float, chunk: int = WHOLE) -> str:
    return f"{model}, {policy}, {shape}, {rate:g}/s" + ("" if chunk == WHOLE else f", chunks of {chunk}")


def _run(model: str, policy: str, shape: str, rate: float, chunk: int) -> Run:
    prompt, output, _ = SHAPES[shape]
    settings = (
        *(f"fleet.model={model}", f"fleet.tp={_MODELS[model]}", f"fleet.tokens_per_iteration={chunk}"),
        *(f"workload.prompt_tokens={prompt}", f"workload.output_tokens={output}"),
        *(f"workload.rate_rps={rate:g}", "workload.duration_s=100"),
    )
    return Run(_label(model, policy, shape, rate, chunk), policy, settings)


@dataclass(frozen=True, slots=True)
class MostGoodput:
    """Says how many times the tokens/s in time of `against` DynaServe has, of the shape where that is most.

    Each has its best rate and size of chunks.
    """

    model: str
    against: str

    def __call__(self, results: Results) -> float | None:
        both = [[self._best(results, name, shape) for name in ("dynaserve", self.against)] for shape in SHAPES]
        return max((mine / other for mine, other in both if other), default=None)

    def _best(self, results: Results, policy: str, shape: str) -> float:
        labels = (
            _label(self.model, policy, shape, rate, chunk)
            for chunk in _CHUNKS.get(policy, (WHOLE,))
            for rate in _RATES[shape]
        )
        return max(float(results[label]["goodput_tokens_s"]) for label in labels)


@dataclass(frozen=True, slots=True)
class Held:
    """Says what is left of the best goodput at the largest rate, in per cent, in the mean of the shapes."""

    model: str
    policy: str

    def __call__(self, results: Results) -> float | None:
        return sum(self._share(results, shape) for shape in SHAPES) * 100.0 / len(SHAPES)

    def _share(self, results: Results, shape: str) -> float:
        runs: list[Figures] = [results[_label(self.model, self.policy, shape, rate)] for rate in _RATES[shape]]
        tokens = [float(own["goodput_tokens_s"]) for own in runs]
        return tokens[-1] / max(tokens) if max(tokens) else 0.0


_BALANCED, _ANSWERS = "2048, 512", "219, 1467"


def _goodput(model: str, policy: str, chunk: int, written: float) -> Claim:
    return Claim(figure(_label(model, policy, _BALANCED, 6.0, chunk), "goodput_tokens_s"), written)


def _gap(model: str, policy: str, rate: float, written: float) -> Claim:
    return Claim(figure(_label(model, policy, _ANSWERS, rate), "itl_s", "p99", 1e3), written, "ms")


_CHUNKS_HOLD = why(
    "small chunks hold 100 ms as well: of (2048, 512) colocation has {chunks_14} tokens/s in time on 14B and "
    "{chunks_32} on 32B with chunks of 512, and {chunks_72} on 72B with 256; DynaServe has {own_14}, {own_32} and "
    "{own_72}.",
    chunks_14=_goodput("Qwen2.5-14B", "pd_coloc", _TUNED, 2033.0),
    chunks_32=_goodput("Qwen2.5-32B", "pd_coloc", _TUNED, 1955.0),
    chunks_72=_goodput("Qwen2.5-72B", "pd_coloc", 256, 1540.0),
    own_14=_goodput("Qwen2.5-14B", "dynaserve", WHOLE, 2020.0),
    own_32=_goodput("Qwen2.5-32B", "dynaserve", WHOLE, 1950.0),
    own_72=_goodput("Qwen2.5-72B", "dynaserve", WHOLE, 1740.0),
)
_CACHE_IS_FULL = why(
    "one GPU decodes all long answers and runs out of cache for them: at 4 requests/s of (219, 1467) requests lose "
    "theirs {lost} times under disaggregation, and P99 gaps are {gap}.",
    lost=Claim(figure(_label("Qwen2.5-14B", "pd_disagg", _ANSWERS, 4.0), "preemptions"), 509.0),
    gap=_gap("Qwen2.5-14B", "pd_disagg", 4.0, 223.0),
)
_ROOM = why(
    "32B, on two GPUs, has room for the long answers: at 8 requests/s of (219, 1467) requests lose their cache "
    "{lost_14} times on 14B and {lost_32} times on 32B, and P99 gaps are {gap_14}, {gap_32} and, on 72B, {gap_72}.",
    lost_14=Claim(figure(_label("Qwen2.5-14B", "pd_coloc", _ANSWERS, 8.0), "preemptions"), 726.0),
    lost_32=Claim(figure(_label("Qwen2.5-32B", "pd_coloc", _ANSWERS, 8.0), "preemptions"), 0.0, by=5.0),
    gap_14=_gap("Qwen2.5-14B", "pd_coloc", 8.0, 223.0),
    gap_32=_gap("Qwen2.5-32B", "pd_coloc", 8.0, 97.0),
    gap_72=_gap("Qwen2.5-72B", "pd_coloc", 8.0, 106.0),
)
_REASONS = {("Qwen2.5-14B", "pd_disagg"): _CACHE_IS_FULL}


DYNASERVE_MODELS = Experiment(
    name="dynaserve-models",
    title="DynaServe, fig. 8: Qwen2.5-14B, 32B and 72B on two instances of 1, 2 and 4 A100",
    quick=False,
    scenario="dynaserve-shapes",
    stands_in=(
        "The three shapes of table 1 for the paper's data sets, as Poisson streams of 100 s at four rates. Colocation "
        "has chunks of 256, 512 and 2,048 tokens, of which the best counts; beyond its peak it has 2,048. "
        "Shapes in which another has no goodput are left out of ratios. The text has the largest gains over all "
        "models, which stand beside each model's, and says that beyond the peak DynaServe's goodput is stable, and "
        "that colocation's falls more the larger the model."
    ),
    runs=tuple(
        _run(model, policy, shape, rate, chunk)
        for model in _MODELS
        for shape in SHAPES
        for policy in POLICIES
        for chunk in _CHUNKS.get(policy, (WHOLE,))
        for rate in _RATES[shape]
    ),
    rows=(
        *(
            Row(
                f"{model}: goodput against {name}, at most",
                "fig. 8",
                "times",
                given,
                MostGoodput(model, policy),
                _CHUNKS_HOLD if policy == "pd_coloc" else _REASONS.get((model, policy), NOT_KNOWN),
            )
            for model in _MODELS
            for policy, name, given in (("pd_coloc", "colocation", 1.91), ("pd_disagg", "disaggregation", 1.61))
        ),
        *(
            Row(
                f"{model}: DynaServe's goodput at the largest rate, of its best",
                "fig. 8",
                "%",
                100.0,
                Held(model, "dynaserve"),
                NOT_KNOWN,
            )
            for model in _MODELS
        ),
        Row(
            "colocation holds less beyond its peak as models grow, steps that do",
            "fig. 8",
            "%",
            100.0,
            Steps(tuple(Held(model, "pd_coloc") for model in _MODELS), down=True),
            _ROOM,
        ),
    ),
    listed=tuple(
        _label(model, policy, shape, _RATES[shape][-1]) for model in _MODELS for shape in SHAPES for policy in POLICIES
    ),
)
