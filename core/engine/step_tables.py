"""Tables the costs of a configuration's iterations at a clock, as they are asked for: the router's arithmetic.

Contexts are taken as typical (`TYPICAL_CONTEXT_TOKENS`): the tables would otherwise not be finite. Energy is at the
GPUs, in joules.
"""

from __future__ import annotations

from core.engine.engine_model import UnknownConfiguration
from core.engine.iteration import IterationCosts, Totals
from core.engine.measured import engine_costs
from core.engine.parameter_caches import cached
from core.engine.steady_state import MAX_SEQUENCES

# Mean prompt (1155) plus half of the mean output (211) of the Azure conversation trace of 2023 (AzurePublicDataset,
# CC-BY).
TYPICAL_CONTEXT_TOKENS = 1260.0
# The granularity of NVIDIA's locked clocks (of the A100: throttLL'eM IV-C1), and so of the tables.
CLOCK_STEP_MHZ = 15.0


class StepTable:
    """Predictions of one configuration at one clock."""

    __slots__ = ("_decode", "_mhz", "_model", "_prefill", "_prompt_token_s", "idle_w", "kv_capacity_tokens")

    def __init__(self, model: IterationCosts, mhz: float) -> None:
        self._model = model
        self._mhz = mhz
        self._decode: list[tuple[float, float] | None] = [None] * (MAX_SEQUENCES + 1)
        self._prefill: dict[tuple[int, int], tuple[float, float]] = {}
        self.idle_w = model.idle_watts(mhz)
        self.kv_capacity_tokens = model.kv_capacity_tokens
        self._prompt_token_s: dict[int, float] = {}

    def prompt_token_s(self, token_budget: int) -> float:
        """Returns the time of a prompt's token where iterations are full of them, of so many (1 or more)."""
        known = self._prompt_token_s.get(token_budget)
        if known is None:
            result = self._model.iteration_of(self._mhz, Totals.plain(token_budget, 0.0, 0.0))
            known = self._prompt_token_s[token_budget] = result.t_s / token_budget
        return known

    def decode(self, batch: int) -> tuple[float, float]:
        """Returns the time and energy of an iteration that decodes `batch` sequences (1 or more)."""
        known = self._decode[batch]
        if known is None:
            result = self._model.iteration_of(self._mhz, Totals.plain(0, batch, batch * TYPICAL_CONTEXT_TOKENS))
            known = self._decode[batch] = (result.t_s, result.energy_j)
        return known

    def prefill(self, prompt_tokens: int, batch_bits: int) -> tuple[float, float]:
        """Returns the time of the iteration with the prompt in it, and what it costs more than the others' sequences
        alone.

        Args:
            prompt_tokens: As `round_up` gives it.
            batch_bits: Bits of the number of the others: tables are kept down to a power of two.
        """
        key = (prompt_tokens, batch_bits)
        known = self._prefill.get(key)
        if known is None:
            batch = min(1 << batch_bits >> 1, MAX_SEQUENCES)
            result = self._model.iteration_of(
                self._mhz, Totals.plain(prompt_tokens, batch, batch * TYPICAL_CONTEXT_TOKENS)
            )
            before_j = self.decode(batch)[1] if batch else self.idle_w * result.t_s
            known = self._prefill[key] = (result.t_s, result.energy_j - before_j)
        return known


def round_up(tokens: int) -> int:
    """Returns the next length with at most five significant bits: at most 1/16 longer, and few enough to table."""
    shift = max(0, tokens.bit_length() - 5)
    return max(1, -(-tokens >> shift) << shift)


def step_table(model: str, gpu: str, tp: int, engine: str, mhz: float) -> StepTable | None:
    """Returns the table at the nearest step of the clock; None: nothing is known of the configuration."""
    return _table(model, gpu, tp, engine, round(mhz / CLOCK_STEP_MHZ))


@cached(maxsize=4096)
def _table(model: str, gpu: str, tp: int, engine: str, clock_step: int) -> StepTable | None:
    try:
        return StepTable(engine_costs(model, gpu, tp, engine), clock_step * CLOCK_STEP_MHZ)
    except UnknownConfiguration:
        return None
