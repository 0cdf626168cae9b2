"""Rows of measured profiles, made of the closed form's figures by two factors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from core.engine.engine_model import closed_form

MODEL, GPU, ENGINE = "Llama3-8B", "A100-80GB", "vllm-v1"
CLOCKS, BATCHES, CONTEXTS = (600.0, 1005.0, 1410.0), (1, 8, 32), (256, 2048)


def rows(
    slower: float = 1.25,
    hotter: float = 0.9,
    *,
    model: str = MODEL,
    gpu: str = GPU,
    tp: int = 1,
    clocks: Sequence[float] = CLOCKS,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    **others: Any,
) -> list[dict[str, Any]]:
    """Returns decode points and a prefill at each clock."""
    return list(_rows(slower, hotter, {"model": model, "gpu": gpu, "tp": tp}, (clocks, batches, contexts), others))


def _rows(
    slower: float,
    hotter: float,
    names: dict[str, Any],
    grid: tuple[Sequence[float], Sequence[int], Sequence[int]],
    others: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    costs = closed_form(names["model"], names["gpu"], names["tp"], ENGINE)
    clocks, batches, contexts = grid
    for mhz in clocks:
        for batch in batches:
            for context in contexts:
                yield _row(costs, names, others, (mhz, 0, batch, batch * context), (slower, hotter))
        yield _row(costs, names, others, (mhz, 512, 0, 0), (slower, hotter))


def _row(
    costs: Any,
    names: dict[str, Any],
    others: dict[str, Any],
    shape: tuple[float, int, int, int],
    factors: tuple[float, float],
) -> dict[str, Any]:
    mhz, prefill, batch, context = shape
    one = costs.iteration(mhz, [(prefill, 0)] if prefill else (), batch, float(context))
    return {
        **names,
        "engine": ENGINE,
        "mhz": mhz,
        "prefill_tokens": prefill,
        "batch": batch,
        "context_tokens": float(context),
        "t_s": one.t_s * factors[0],
        "watts": one.watts * factors[1],
        **others,
    }
