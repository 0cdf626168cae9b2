"""DynamoLLM (arXiv 2408.00741), tables I to III: energy per request of classes, loads and models on H100.

Reading: vLLM of 2024. The tables give no lengths. Inputs are the middles of the classes of its table IV (below 256,
1024 and 8192 tokens); outputs are 50, 200 and 500, within its classes (below 100, below 350, open), and give the row
scales that the table of facts names to 7 % in the mean. The load is in prompt tokens a second: 650, 2,000 or 4,000.
The published energies behave as an instance's power times one request's latency, not as energy shared by a batch, so
that is what is predicted; a configuration that cannot keep up stands at its largest batch. Each row of a table (class,
load or model) has one free scale, the geometric mean of published over predicted: the shape over TP and clock is
compared, not the level.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from core.engine.engine_model import MODELS, engine_model
from core.engine.facts.fact_table import Comparison, Evaluation, Fact, skipped, value_of
from core.engine.facts.fixed_batch import at_batch

ENGINE = "vllm-2024"
GPUS = {"H100": "H100-SXM-80GB"}
INPUT_TOKENS = {"S": 128.0, "M": 640.0, "L": 4608.0}
OUTPUT_TOKENS = {"S": 50.0, "M": 200.0, "L": 500.0}
PROMPT_TOKENS_PER_S = {"Low": 650.0, "Medium": 2000.0, "High": 4000.0}
_ENTRY = re.compile(r"(?P<row>\S+) TP(?P<tp>[1-9]\d*) (?P<ghz>\d+(\.\d+)?) GHz (?P<gpu>\S+)")
_ENERGY, _CHOICE = "energy per request", "energy-optimal configuration"


@dataclass(frozen=True, slots=True)
class _TableEntry:
    fact: Fact
    name: str  # TP4@1.2, as the tables write a configuration
    published_wh: float
    predicted_wh: float


def energies(facts: Sequence[Fact]) -> list[Evaluation]:
    """Evaluates the rows of one table."""
    found: list[Evaluation] = []
    cells: dict[str, list[_TableEntry]] = {}
    choices: list[Fact] = []
    for fact in facts:
        match = _ENTRY.fullmatch(fact.condition)
        if fact.quantity.startswith(_CHOICE):
            choices.append(fact)
        elif not fact.quantity.startswith(_ENERGY) or match is None or not fact.number:
            found.append(skipped(fact, "not an energy at a row, TP and clock"))
        else:
            row, tp, ghz = match["row"], int(match["tp"]), float(match["ghz"])
            wh = _predict_wh(row, GPUS.get(match["gpu"]), tp, ghz * 1000.0)
            if isinstance(wh, str):
                found.append(skipped(fact, wh))
            else:
                cells.setdefault(row, []).append(_TableEntry(fact, f"TP{tp}@{match['ghz']}", fact.number, wh))
    for row in cells.values():
        found += _scaled(row)
    return found + [_choice(fact, cells.get(fact.condition, [])) for fact in choices]


def _scaled(row: Sequence[_TableEntry]) -> list[Evaluation]:
    scale = math.exp(sum(math.log(cell.published_wh / cell.predicted_wh) for cell in row) / len(row))
    return [value_of(cell.fact, "", scale * cell.predicted_wh, f"row scale {scale:.2f}") for cell in row]


def _choice(fact: Fact, row: Sequence[_TableEntry]) -> Evaluation:
    if not row:
        return skipped(fact, "no energies of its row to choose among")
    chosen = min(row, key=lambda cell: cell.predicted_wh)
    regret = chosen.published_wh / min(cell.published_wh for cell in row) - 1.0
    return Evaluation(fact, "", Comparison.CHOICE, chosen.name, regret, "regret by the published energies")


def _predict_wh(row: str, gpu: str | None, tp: int, mhz: float) -> float | str:
    """Returns power times one request's latency in Wh, or why there is none. `row` is a class, a load or a model."""
    model_name, cls, load = "Llama2-70B", "MM", "Medium"
    if row in PROMPT_TOKENS_PER_S:
        load = row
    elif row in MODELS:
        model_name = row
    elif len(row) == 2 and row[0] in INPUT_TOKENS and row[1] in OUTPUT_TOKENS:
        cls = row
    else:
        return f"'{row}' is no class, load or known model"
    if gpu is None:
        return "unknown GPU"
    instance = engine_model(model_name, gpu, tp, ENGINE)
    prompt, output = INPUT_TOKENS[cls[0]], OUTPUT_TOKENS[cls[1]]
    steady = instance.steady_state(PROMPT_TOKENS_PER_S[load] / prompt, prompt, output, mhz)
    if steady.stable:
        return steady.power_w * steady.e2e_s / 3600.0
    if steady.batch < 1.0:
        return "the model does not fit"
    full = at_batch(instance, mhz, steady.batch, prompt, output)
    return full.watts * (full.ttft_s + output * full.tpot_s) / 3600.0
