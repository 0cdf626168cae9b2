"""Scores serving configurations kept at a batch: the format of ML.ENERGY's public results, one row for each.

Columns: model, task, gpu, num_gpus, ep, dp, mean_batch, mean_output_tokens, mean_power_w, joules_per_output_token,
itl_p50_ms. The table does not have lengths of prompts; those of its tasks, and four figures of how the benchmark runs
(below), were fitted with parameter set 2 and are the scoring's, not the engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from core.engine.engine_model import EngineModel, UnknownConfiguration
from core.engine.gpu_types import gpu_types
from core.engine.iteration import Iteration, Totals
from core.engine.truth.board import BadTable, Board, Scored, ShapeOf, number

ENGINE, BUSY_HOST = "vllm-2025", "vllm-2025-busy-host"
LEAST_BATCH = 4.0  # rows below are shown, and in no score
PROMPT_TOKENS = {"lm-arena-chat": 377.9, "gpqa": 247.4, "sourcegraph-fim": 2397.0}
OTHER_PROMPT_TOKENS = PROMPT_TOKENS["lm-arena-chat"]
_CONTEXT_SHARE = 0.4243  # of an answer that is there on the mean
_MOST_STARTS = 2.823  # prompts an iteration that the benchmark's client keeps coming
# The median interval turns from iterations without prompts to those with them about so many prompts an iteration.
_MEDIAN_AT, _MEDIAN_POWER = 3.792, 4.007
# With one B200 and long answers all models took 32 to 44 ms at a batch of 8: eight API servers share the host's cores.
_BUSY = ("B200", 1.0, 4000.0)


def score(rows: Iterable[Mapping[str, str]], shape_of: ShapeOf) -> Board:
    """Scores ITL, power and joules a token of each row. Raises BadTable."""
    return Board(tuple(_scored(line, row, shape_of) for line, row in enumerate(rows, 2)))


def gpu_named(name: str) -> str:
    """Returns the GPU type that a table calls so: its name, or the first that begins so (SXM before others)."""
    known = gpu_types()
    if name in known:
        return name
    found = [one for one in known if one.startswith(f"{name}-")]
    return next((one for one in found if "-SXM-" in one), found[0] if found else name)


def _scored(line: int, row: Mapping[str, str], shape_of: ShapeOf) -> Scored:
    model, gpu = row.get("model", ""), row.get("gpu", "")
    if not model or not gpu:
        raise BadTable(f"line {line}: {'gpu' if model else 'model'}: missing")
    task = row.get("task", "")
    groups = {"gpu": gpu, "model": model, "task": task}
    gpus, batch, output = (number(row, line, name) for name in ("num_gpus", "mean_batch", "mean_output_tokens"))
    if number(row, line, "dp") > 1.0:
        return Scored(line, groups, refused="attention by data parallelism is not modelled")
    engine = BUSY_HOST if (gpu, gpus) == _BUSY[:2] and output > _BUSY[2] else ENGINE
    try:
        shape = shape_of(model)
        ep = int(number(row, line, "ep")) if row.get("ep") else 1
        instance = EngineModel(shape, gpu_named(gpu), int(gpus), engine, ep=ep)
    except UnknownConfiguration as error:
        return Scored(line, groups, refused=str(error))
    except ValueError as error:
        return Scored(line, groups, refused=f"{model}: {error}")
    itl_s, mean_s, watts = _at_batch(instance, batch, output, PROMPT_TOKENS.get(task, OTHER_PROMPT_TOKENS))
    values = {
        "itl_p50_ms": (number(row, line, "itl_p50_ms"), itl_s * 1e3),
        "power_w": (number(row, line, "mean_power_w"), watts),
        "joules_per_token": (number(row, line, "joules_per_output_token"), watts * mean_s / batch),
    }
    shape_params = instance.model_params
    kind = "MLA" if shape_params.latent else "MoE" if shape_params.experts else "dense"
    bits = f"{shape_params.expert_bits if shape_params.experts else shape_params.dense_bits:g}"
    return Scored(line, {**groups, "kind": kind, "bits": bits}, values, counts=batch >= LEAST_BATCH)


def _at_batch(instance: EngineModel, batch: float, output: float, prompt: float) -> tuple[float, float, float]:
    """Returns the median and the mean interval in seconds, and the mean watts, of an instance kept at a batch."""
    mhz = instance.gpu_params.f_max
    starts = batch / output / (1.0 + batch / output / _MOST_STARTS)  # an iteration
    share, prefills = min(1.0, starts), max(1.0, starts)
    decode = Totals(decodes=batch, context_tokens=batch * (prompt + _CONTEXT_SHARE * output))
    mixed = Totals(prefills * prompt, 0.0, prefills * prompt**2 / 2.0, prefills, decode.decodes, decode.context_tokens)
    without: Iteration = instance.iteration_of(mhz, decode)
    beside = instance.iteration_of(mhz, mixed)
    mean_s = (1.0 - share) * without.t_s + share * beside.t_s
    energy_j = (1.0 - share) * without.energy_j + share * beside.energy_j
    at = (starts / _MEDIAN_AT) ** _MEDIAN_POWER
    return without.t_s + (beside.t_s - without.t_s) * at / (1.0 + at), mean_s, energy_j / mean_s
