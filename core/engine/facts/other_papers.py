"""mu-Serve section 2.2, DynaServe table 1, and the weight transfer of DynamoLLM's table VI."""

from __future__ import annotations

import re
from collections.abc import Sequence

from core.engine.engine_model import MODELS, engine_model
from core.engine.facts.fact_table import Evaluation, Fact, skipped, value_of

# mu-Serve (USENIX ATC 2024): GPT-2 large on a V100, eager PyTorch. The load is not stated: 8 sequences of 512 tokens.
_MU_SERVE_BATCH, _MU_SERVE_CONTEXT = 8, 512
_MU_SERVE_MHZ = (1300.0, 800.0)
_POWER_AT = re.compile(r"power (\d+) MHz")
# DynaServe (arXiv 2504.09285): Qwen2.5-14B on one A100 for prefill and one for decode, vLLM of 2024. Of the two A100s
# the one with 40 GB is assumed: with 80 GB a full KV cache would take 82 % longer a token than published.
_DYNASERVE = ("Qwen2.5-14B", "A100-40GB", 1, "vllm-2024")
_LENGTHS = re.compile(r"P([1-9]\d*) D(\d+)")
# DynamoLLM, table VI: T is the time to move 1/8 of Llama2-70B's weights over 300 GB/s.
_TRANSFER = re.compile(r"T = .* per 1/([1-9]\d*) of (\S+) weights over ([1-9]\d*) GB/s")


def mu_serve(facts: Sequence[Fact]) -> list[Evaluation]:
    """Evaluates what section 2.2 of mu-Serve measured of GPT-2 on a V100."""
    instance = engine_model("gpt2-large", "V100-16GB", 1, "eager-2023-a100")

    def watts(mhz: float) -> float:
        return instance.iteration(mhz, (), _MU_SERVE_BATCH, _MU_SERVE_BATCH * _MU_SERVE_CONTEXT).gpu_watts

    found = []
    for fact in facts:
        if match := _POWER_AT.fullmatch(fact.quantity):
            found.append(value_of(fact, "", watts(float(match[1]))))
        elif fact.quantity == "power ratio":
            found.append(value_of(fact, "", watts(_MU_SERVE_MHZ[0]) / watts(_MU_SERVE_MHZ[1])))
        else:
            found.append(skipped(fact, "neither power nor ratio of powers"))
    return found


def dynaserve(facts: Sequence[Fact]) -> list[Evaluation]:
    """Evaluates table 1.

    Decode: the KV cache full of sequences half-way through their output. Prefill: one whole prompt at a time.
    """
    instance = engine_model(*_DYNASERVE)
    top = instance.gpu_params.f_max
    found = []
    for fact in facts:
        match = _LENGTHS.fullmatch(fact.condition)
        if match and fact.quantity.startswith("decode p50 TBT"):
            context = int(match[1]) + int(match[2]) / 2.0
            batch = int(instance.kv_capacity_tokens / context)
            found.append(value_of(fact, "", instance.iteration(top, (), batch, batch * context).t_s * 1e3))
        elif match and fact.quantity == "prefill-GPU throughput":
            found.append(value_of(fact, "", 1.0 / instance.iteration(top, [(int(match[1]), 0)]).t_s))
        else:
            found.append(skipped(fact, "neither decode TBT nor prefill throughput of known lengths"))
    return found


def weight_transfer(facts: Sequence[Fact]) -> list[Evaluation]:
    """Evaluates the times in which DynamoLLM's table VI moves shares of a model's weights."""
    found = []
    for fact in facts:
        match = _TRANSFER.fullmatch(fact.condition)
        if match and match[2] in MODELS:
            share, params = int(match[1]), MODELS[match[2]]
            seconds = params.params * params.dtype_bytes / share / (float(match[3]) * 1e9)
            found.append(value_of(fact, "", seconds * 1e3))
        else:
            found.append(skipped(fact, "not a share of a known model's weights over a link"))
    return found
