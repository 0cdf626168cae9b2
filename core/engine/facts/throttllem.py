"""throttLL'eM (arXiv 2408.05235): section III's sweeps of Llama2-13B on A100-40GB, and table II.

Reading: TensorRT-LLM (`trtllm`). Section III generates 1,024 tokens, so contexts go from 1 to 1,024 and their mean,
512 tokens a sequence, stands for the whole run; clocks are swept in the A100's steps of 15 MHz. TPJ is tokens a joule.
Table II: 1,024 tokens in and 250 out, at most 256 sequences; KV blocks of 128 tokens (inferred).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from core.engine.engine_model import MODELS, EngineModel, engine_model
from core.engine.engine_vector import iterations
from core.engine.facts.fact_table import Evaluation, Fact, lower_bound_of, skipped, value_of
from core.types import Limits

ENGINE, GPU = "trtllm", "A100-40GB"
MEAN_CONTEXT_TOKENS, LAST_CONTEXT_TOKENS = 512.0, 1024.0
TABLE_II_LENGTHS = (1024.0, 250.0)
BLOCK_TOKENS = 128.0
CLOCK_STEP_MHZ = 15.0
_INSTANCE = re.compile(r"(?P<model>\S+) TP(?P<tp>[1-9]\d*)")
_BATCH = re.compile(r"batch ([1-9]\d*)")


def _time_s(instance: EngineModel, mhz: float, batch: int, context: float = MEAN_CONTEXT_TOKENS) -> float:
    return instance.iteration(mhz, (), batch, batch * context).t_s


def _watts(instance: EngineModel, mhz: float, batch: int) -> float:
    return instance.iteration(mhz, (), batch, batch * MEAN_CONTEXT_TOKENS).watts


def _tokens_per_j(instance: EngineModel, mhz: float, batch: int) -> float:
    return batch / (_watts(instance, mhz, batch) * _time_s(instance, mhz, batch))


def _best_mhz(instance: EngineModel, batch: int) -> float:
    g = instance.gpu_params
    clocks = np.arange(g.f_min, g.f_max + 1.0, CLOCK_STEP_MHZ)
    found = iterations(instance, clocks, decodes=batch, context_tokens=batch * MEAN_CONTEXT_TOKENS)
    return float(clocks[int(np.argmin(found.energy_j))])


_SECTION_III_A: dict[str, Callable[[EngineModel], float]] = {
    "TPJ gain 1050 vs 1410 MHz": lambda m: _tokens_per_j(m, 1050, 32) / _tokens_per_j(m, 1410, 32),
    "throughput ratio 1050/1410": lambda m: _time_s(m, 1410, 32) / _time_s(m, 1050, 32),
    "TBT ratio 1050/1410": lambda m: _time_s(m, 1050, 32) / _time_s(m, 1410, 32),
    "power ratio 1410/210 MHz": lambda m: _watts(m, 1410, 32) / _watts(m, 210, 32),
    "power at batch 32 / batch 1": lambda m: _watts(m, 1410, 32) / _watts(m, 1410, 1),
    "TBT at batch 1, 1410 MHz": lambda m: _time_s(m, 1410, 1) * 1e3,
}


def clocks(facts: Sequence[Fact]) -> list[Evaluation]:
    """Evaluates III-A: two GPUs; batch 32 unless the row says another."""
    instance = engine_model("Llama2-13B", GPU, 2, ENGINE)
    found = []
    for fact in facts:
        quantity = next((name for name in _SECTION_III_A if fact.quantity.startswith(name)), None)
        batch = _BATCH.fullmatch(fact.condition)
        if quantity and "lower bound" in fact.unit:
            found.append(lower_bound_of(fact, "", _SECTION_III_A[quantity](instance)))
        elif quantity:
            found.append(value_of(fact, "", _SECTION_III_A[quantity](instance)))
        elif fact.quantity == "most efficient frequency" and batch:
            found.append(value_of(fact, "", _best_mhz(instance, int(batch[1]))))
        else:
            found.append(skipped(fact, "no such quantity of section III-A is known"))
    return found


def kv_loss(facts: Sequence[Fact]) -> list[Evaluation]:
    """Evaluates III-B: throughput lost between the first and the last token of a batch of 32."""
    instance = engine_model("Llama2-13B", GPU, 2, ENGINE)
    first = _time_s(instance, 1410, 32, 1.0)
    loss = 1.0 - first / _time_s(instance, 1410, 32, LAST_CONTEXT_TOKENS)
    return [
        value_of(fact, "", loss)
        if fact.quantity.startswith("max throughput loss by KV use")
        else skipped(fact, "not the loss by KV use")
        for fact in facts
    ]


def tp_ratio(facts: Sequence[Fact]) -> list[Evaluation]:
    """Evaluates III-C: tokens a joule of TP2 over TP4 at batch 64, top clock."""
    two, four = (_tokens_per_j(engine_model("Llama2-13B", GPU, tp, ENGINE), 1410, 64) for tp in (2, 4))
    return [
        value_of(fact, "", two / four) if fact.quantity.startswith("TP2 / TP4 TPJ") else skipped(fact, "not TP2 / TP4")
        for fact in facts
    ]


def capacity(facts: Sequence[Fact]) -> list[Evaluation]:
    """Evaluates table II: the largest stable rate at the top clock, and blocks of KV cache."""
    found = []
    for fact in facts:
        match = _INSTANCE.fullmatch(fact.condition)
        if match is None or match["model"] not in MODELS:
            found.append(skipped(fact, "not a known model and TP"))
            continue
        instance = engine_model(match["model"], GPU, int(match["tp"]), ENGINE)
        if fact.quantity.startswith("max load"):
            rate = instance.max_rps(*TABLE_II_LENGTHS, instance.gpu_params.f_max, Limits())
            found.append(value_of(fact, "max load", rate))
        elif fact.quantity.startswith("KV blocks"):
            found.append(value_of(fact, "KV blocks", instance.kv_capacity_tokens / BLOCK_TOKENS))
        else:
            found.append(skipped(fact, "neither load nor KV blocks"))
    return found
