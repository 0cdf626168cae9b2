"""Scores a sweep of locked clocks: the same work at each clock, with its time, power and energy.

Columns: series, phase (Prefill or Decode), sm_clock_mhz, prompt_tokens (of all prompts), concurrency (empty: 1),
duration_s, mean_power_w, energy_j, output_tokens (of all answers). What the columns do not say is read so: with a
concurrency, decodes are of 256 tokens each and prompts of 2,500; a lone series of prompts sends one after the other,
one for each token of output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from core.engine.engine_model import EngineModel
from core.engine.iteration import Totals
from core.engine.truth.board import BadTable, Board, Choice, Scored, ShapeOf, number

ENGINE = "vllm-2025"
_ANSWER_TOKENS, _PROMPT_TOKENS, _CHUNK_TOKENS = 256.0, 2500.0, 2048.0


@dataclass(frozen=True, slots=True)
class _Job:
    """One row's work, as so many iterations of one kind."""

    totals: Totals
    iterations: float


def score(rows: Iterable[Mapping[str, str]], shape_of: ShapeOf, model: str, gpu: str) -> Board:
    """Scores time, power and energy of each row, and the clock that the model chooses for each series.

    Raises BadTable, UnknownConfiguration; ValueError when the model has no shape.
    """
    instance = EngineModel(shape_of(model), gpu, 1, ENGINE)
    found, energies = [], dict[str, list[tuple[float, float, float]]]()
    for line, row in enumerate(rows, 2):
        mhz = number(row, line, "sm_clock_mhz")
        job = _job(row, line)
        one = instance.iteration_of(mhz, job.totals)
        seconds = one.t_s * job.iterations
        measured_j = number(row, line, "energy_j")
        groups = {"series": row.get("series", ""), "phase": row.get("phase", "")}
        values = {
            "duration_s": (number(row, line, "duration_s"), seconds),
            "power_w": (number(row, line, "mean_power_w"), one.watts),
            "energy_j": (measured_j, one.watts * seconds),
        }
        found.append(Scored(line, groups, values))
        energies.setdefault(groups["series"], []).append((mhz, measured_j, one.watts * seconds))
    return Board(tuple(found), tuple(_choice(name, each) for name, each in energies.items()))


def _choice(series: str, energies: list[tuple[float, float, float]]) -> Choice:
    chosen = min(energies, key=lambda one: one[2])
    best = min(energies, key=lambda one: one[1])
    return Choice(series, chosen[0], best[0], chosen[1] / best[1] - 1.0)


def _job(row: Mapping[str, str], line: int) -> _Job:
    phase = row.get("phase", "").lower()
    prompt, output = number(row, line, "prompt_tokens"), number(row, line, "output_tokens")
    together = bool(row.get("concurrency"))
    if phase == "decode":
        sequences = output / _ANSWER_TOKENS if together else 1.0
        steps = output / sequences
        each = prompt / (sequences if together else 1.0) + steps / 2.0
        return _Job(Totals(decodes=sequences, context_tokens=sequences * each), steps)
    if phase == "prefill":
        if not together:
            each = prompt / output
            return _Job(Totals(each, 0.0, each**2 / 2.0, 1.0), output)
        pairs = _CHUNK_TOKENS * _PROMPT_TOKENS / 2.0
        return _Job(Totals(_CHUNK_TOKENS, 0.0, pairs, _CHUNK_TOKENS / _PROMPT_TOKENS), prompt / _CHUNK_TOKENS)
    raise BadTable(f"line {line}: phase: '{row.get('phase')}' is neither Prefill nor Decode")
