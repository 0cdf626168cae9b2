"""DynamoLLM's request classes and objectives (HPCA 2025, table IV), as data, and what follows for a shared pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from core.types import Limits

# Upper bounds, exclusive, None: open. Input is "at most 8192" tokens there; longer prompts are long ones too.
INPUTS: tuple[tuple[str, int, int | None, float], ...] = (  # name, from, below, TTFT limit in seconds
    ("S", 0, 256, 0.250),
    ("M", 256, 1024, 0.400),
    ("L", 1024, None, 2.000),
)
OUTPUTS: tuple[tuple[str, int, int | None], ...] = (("S", 0, 100), ("M", 100, 350), ("L", 350, None))
TBT_S = 0.100
PUBLISHED_FACTOR = 5.0  # table IV is 5 x the latency of a request by itself (III-A)
FACTORS = (5.0, 10.0, 20.0)  # those that the paper names for stricter and looser services (III-A)


@dataclass(frozen=True, slots=True)
class RequestClass:
    """A cell of table IV; fills `request_classes.ClassBounds`. A larger rank is a larger request."""

    name: str
    rank: int
    input_min: int
    input_max: int | None
    output_min: int
    output_max: int | None
    limits: Limits


def request_classes(factor: float = PUBLISHED_FACTOR) -> tuple[RequestClass, ...]:
    """Returns SS, SM, SL, MS ... LL, smallest first: the order in which load is handed on to the next larger class.

    Args:
        factor: Limits are that many times the latency of a request by itself; one of `FACTORS`, or any above 1.

    Raises:
        ValueError: The factor is below 1.
    """
    if factor < 1.0:
        raise ValueError(f"no request is faster than one by itself: the factor is at least 1, not {factor:g}")
    scale = factor / PUBLISHED_FACTOR
    return tuple(
        RequestClass(
            name_in + name_out,
            len(OUTPUTS) * i + o,
            input_min,
            input_max,
            output_min,
            output_max,
            Limits(ttft_s=ttft_s * scale, tpot_s=TBT_S * scale),
        )
        for i, (name_in, input_min, input_max, ttft_s) in enumerate(INPUTS)
        for o, (name_out, output_min, output_max) in enumerate(OUTPUTS)
    )


def strictest(present: Iterable[Limits]) -> Limits:
    """Returns the limits that the configuration of a pool is to keep: of each limit the tightest of those that share it
    now.

    Requests keep their own deadlines; this is for the TP degrees and clocks that all of them run at (III-B, end).
    E2E is not among them: it goes with a request's length.
    """
    limits = tuple(present)
    return Limits(
        ttft_s=min((own.ttft_s for own in limits if own.ttft_s is not None), default=None),
        tpot_s=min((own.tpot_s for own in limits if own.tpot_s is not None), default=None),
    )
