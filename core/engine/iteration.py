"""One engine iteration: what it has to do, what it costs, and who can tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from core.types import Source


@dataclass(frozen=True, slots=True)
class Totals:
    """What an iteration has to do, over its prefills and its decoding sequences; means over many need not be whole."""

    new_tokens: float = 0.0  # of all prefills
    cached_tokens: float = 0.0  # that they already have in the KV cache
    pairs: float = 0.0  # sum over prefills of new (cached + new / 2): token pairs of their attention
    prefills: float = 0.0
    decodes: float = 0.0  # B
    context_tokens: float = 0.0  # K, the sum of their contexts

    @classmethod
    def plain(cls, prefill_tokens: float, decodes: float, context_tokens: float) -> Totals:
        """Returns the totals of one prefill without cached tokens (0: none) beside decoding sequences."""
        pairs = prefill_tokens * prefill_tokens / 2.0
        return cls(prefill_tokens, 0.0, pairs, 1.0 if prefill_tokens else 0.0, decodes, context_tokens)


@dataclass(frozen=True, slots=True)
class Iteration:
    """One engine iteration. `watts` of the instance, `gpu_watts` of each GPU (at most the TDP), both means over it."""

    t_s: float
    watts: float
    gpu_watts: float
    f_eff_mhz: float  # below the clock asked for when the GPU throttles at its TDP
    energy_j: float
    source: Source = Source.MODELLED


class IterationCosts(Protocol):
    """The part of an instance that a steady state needs to know."""

    @property
    def kv_capacity_tokens(self) -> float: ...

    def idle_watts(self, mhz: float) -> float: ...

    def iteration_of(self, mhz: float, totals: Totals) -> Iteration: ...
