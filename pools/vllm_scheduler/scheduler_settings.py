"""The settings that can change while the scheduler runs, and the messages that change them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

ORDERS = ("vllm", "llf")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of scheduling. The defaults are vLLM's own decisions.

    Attributes:
        order: vllm (its `--scheduling-policy`) | llf (least laxity first, preemptive).
        itl_limit_s: A step with decodes takes on no more of prompts than keeps it within; None: no limit.
        max_num_batched_tokens, max_num_seqs: Up to what the engine was started with; None: that.
        chunk_tokens: A step takes no more of any one prompt; 0: vLLM's own `long_prefill_token_threshold`.
        preempts_s: Once in each stretch of so many seconds waiting requests may take running ones' places; 0: never.
        margin_s: The laxity that a running request must keep beyond what giving way costs it.
        window_factor: alpha_LLF: a request is due so many times its time alone after its arrival; at least 1.
        default_window_s: When a request that brings neither hints nor a priority is due after its arrival.
    """

    order: str = "vllm"
    itl_limit_s: float | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    chunk_tokens: int = 0
    preempts_s: float = 1.0
    margin_s: float = 1.0
    window_factor: float = 1.4  # FREESH C.2
    default_window_s: float = 30.0

    @property
    def by_laxity(self) -> bool:
        return self.order == "llf"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Most:
    """The limits that the engine was started with."""

    max_num_batched_tokens: int
    max_num_seqs: int


def changed(settings: Settings, fields: Mapping[str, Any], most: Most) -> Settings:
    """Raises ValueError, naming the field and what it may be; then nothing is to change."""
    known = settings.to_json()
    for name, value in fields.items():
        if name not in known:
            raise ValueError(f"{name} is no setting: they are {', '.join(known)}")
        if name == "order":
            if value not in ORDERS:
                raise ValueError(f"order is one of {', '.join(ORDERS)}, not {value!r}")
        elif name in ("max_num_batched_tokens", "max_num_seqs"):
            highest = getattr(most, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and 1 <= value <= highest):
                raise ValueError(
                    f"{name} is a whole number from 1 to the {highest} that the engine was started with, or null for "
                    f"that, not {value!r}"
                )
        elif name == "chunk_tokens":
            if not (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
                raise ValueError(f"chunk_tokens is a whole number from 0, not {value!r}")
        elif name == "itl_limit_s":
            if value is not None and not (_number(value) and value > 0.0):
                raise ValueError(f"itl_limit_s is a number of seconds above 0, or null for no limit, not {value!r}")
        elif name == "window_factor":
            if not (_number(value) and value >= 1.0):
                raise ValueError(f"window_factor is a number from 1, not {value!r}")
        elif not (_number(value) and value >= 0.0):
            raise ValueError(f"{name} is a number of seconds from 0, not {value!r}")
    return replace(settings, **fields)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
