"""A block of requests held against its latency objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.simulator.kernel import kernel

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[Any]  # of kernel.REQUEST

KINDS = ("ttft", "tpot_mean", "itl_p99", "e2e")


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency objectives of a request class; None: none of that kind."""

    ttft_s: float | None = None
    tpot_mean_s: float | None = None
    itl_p99_s: float | None = None
    e2e_s: float | None = None

    @property
    def limits_s(self) -> tuple[float | None, ...]:
        """The limits in the order of KINDS."""
        return (self.ttft_s, self.tpot_mean_s, self.itl_p99_s, self.e2e_s)

    @property
    def any(self) -> bool:
        return any(limit is not None for limit in self.limits_s)


@dataclass(frozen=True, slots=True)
class Labels:
    """The names of the numbers in a request's row; `slos` go with `classes`."""

    classes: tuple[str, ...]
    slos: tuple[Slo, ...]
    services: tuple[str, ...] = ("default",)
    tenants: tuple[str, ...] = ("default",)
    cells: tuple[str, ...] | None = None  # None: the classes
    pools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.slos) != len(self.classes):
            raise ValueError(f"{len(self.slos)} objectives for {len(self.classes)} classes: give one for each")


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRows:
    """Columns over a block; NaN: there is none (not finished, or a single token has neither TPOT nor ITL).

    `kept[k]` says who kept the objective of kind KINDS[k], `met` who kept all of its class. Only who finished can; one
    without a TPOT or an ITL keeps those. `longest_wait_s` is the longest time without progress: to the first token, or
    between two tokens (FREESH C.4).
    """

    done: Bools
    rejected: Bools
    ttft_s: Floats
    tpot_s: Floats
    itl_p99_s: Floats
    itl_max_s: Floats
    e2e_s: Floats
    longest_wait_s: Floats
    kept: Bools  # (len(KINDS), rows)
    met: Bools


class Judge:
    """Knows each class's objectives."""

    def __init__(self, slos: Sequence[Slo]) -> None:
        # (kinds, classes)
        self._limit_s = np.array([[np.inf if limit is None else limit for limit in slo.limits_s] for slo in slos]).T

    def __call__(self, rows: Rows) -> JudgedRows:
        done = rows["status"] == kernel.DONE
        several = done & (rows["output"] > 1)
        first_s, finish_s = rows["first_token_s"], rows["finish_s"]
        ttft_s = first_s - rows["arrival_s"]
        tpot_s = (finish_s - first_s) / np.where(several, rows["output"] - 1.0, np.nan)
        itl_p99_s, itl_max_s = (np.where(several, rows[name], np.nan) for name in ("itl_p99_s", "itl_max_s"))
        e2e_s = np.where(done, finish_s - rows["arrival_s"], np.nan)
        limit_s = self._limit_s[:, rows["request_class"]]
        kept = done & ~(np.stack([ttft_s, tpot_s, itl_p99_s, e2e_s]) > limit_s)
        return JudgedRows(
            done=done,
            rejected=rows["status"] == kernel.REJECTED,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            itl_p99_s=itl_p99_s,
            itl_max_s=itl_max_s,
            e2e_s=e2e_s,
            longest_wait_s=np.where(done, np.fmax(ttft_s, itl_max_s), np.nan),
            kept=kept,
            met=kept.all(axis=0),
        )
