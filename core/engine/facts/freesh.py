"""FREESH (arXiv 2511.00807), constants of its released code: TBT and power of Llama3-70B at each mode's largest rate.

Reading: its vLLM (`vllm-freesh`) at the top clock. Concurrency is rate times latency (Little's law) and the output
length 1 + (latency - TTFT) / TBT, all from the same constants (data/freesh_loads.csv). Prompt lengths are not
published: one is assumed for each partition and input class, within the bound between them (table 4: 184 tokens in
partition a, 25 in b), as the A100 rows' TBT ask for. These four numbers are inferred: the A100 rows are a fit, no test.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from core.engine.engine_model import MODELS, engine_model
from core.engine.facts.fact_table import Evaluation, Fact, skipped, value_of
from core.engine.facts.fixed_batch import at_batch

ENGINE = "vllm-freesh"
PROMPT_TOKENS = {("a", "S"): 100.0, ("a", "L"): 400.0, ("b", "S"): 25.0, ("b", "L"): 200.0}
_LOADS = Path(__file__).parent.parent / "data" / "freesh_loads.csv"
_CONDITION = re.compile(r"(?P<model>\S+) (?P<gpu>\S+) TP(?P<tp>[1-9]\d*) (?P<cls>[SL]{2}) part (?P<part>[ab])\b.*")


@dataclass(frozen=True, slots=True)
class PublishedLoad:
    concurrency: float
    output_tokens: float


@cache
def loads() -> dict[tuple[str, str, str, int], PublishedLoad]:
    """Reads the published loads by partition, class, GPU and TP; modes without a rate or a possible TBT are missing."""
    with _LOADS.open(encoding="utf-8", newline="") as file:
        return {
            (row["partition"], row["request_class"], row["gpu"], int(row["tp"])): PublishedLoad(
                concurrency=float(row["max_rps"]) * float(row["latency_s"]),
                output_tokens=1.0 + (float(row["latency_s"]) * 1e3 - float(row["ttft_ms"])) / float(row["tbt_ms"]),
            )
            for row in csv.DictReader(file)
        }


def steady(facts: Sequence[Fact]) -> list[Evaluation]:
    """Evaluates the steady states that FREESH's code publishes."""
    return [_one(fact) for fact in facts]


def _one(fact: Fact) -> Evaluation:
    match = _CONDITION.fullmatch(fact.condition)
    if match is None or fact.quantity not in ("TBT", "power per GPU"):
        return skipped(fact, "not TBT or power of a partition, class and mode")
    part, cls, gpu, tp = match["part"], match["cls"], match["gpu"], int(match["tp"])
    group = f"{gpu}, {fact.quantity}"
    load = loads().get((part, cls, gpu, tp))
    if load is None:
        return skipped(fact, "its load is not published", group)
    if match["model"] not in MODELS:
        return skipped(fact, f"unknown model {match['model']}", group)
    instance = engine_model(match["model"], gpu, tp, ENGINE)
    prompt = PROMPT_TOKENS[part, cls[0]]
    found = at_batch(instance, instance.gpu_params.f_max, load.concurrency, prompt, load.output_tokens)
    return value_of(fact, group, found.tpot_s * 1e3 if fact.quantity == "TBT" else found.watts / tp)
