"""throttLL'eM's projections (V-C, fig. 7): batch, KV cache and times of iterations, beside simulated engines that run
them.

As in the paper a micro-trace is one clock and requests of random lengths that come all at once. What the scoreboard
projects of them at that moment is compared with what the engine is seen to have at polls, and with when requests end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from core.algorithms.clock.projection import Floats, Scoreboard, outlook, project
from core.algorithms.clock.speed_table import SpeedTable
from core.predictors.engine_speed import engine_speed
from core.simulator.kernel.commands import Answer, FleetView
from core.simulator.kernel.driver import simulate
from core.simulator.kernel.simulated import FleetSpec, InstanceSpec, PoolSpec, load

_MODEL, _GPU, _TP, _ENGINE = "Llama2-13B", "A100-40GB", 2, "trtllm"
_CLOCKS_MHZ = tuple(np.arange(210.0, 1411.0, 150.0).tolist())
_REQUESTS = 24
_MOST_PROMPT, _MOST_OUTPUT = 1500, 500  # tokens: most of the conversation hour's are shorter (III-D)
_POLL_S = 0.01  # shorter than an iteration: each is seen


@dataclass(frozen=True, slots=True)
class ProjectionErrors:
    """Mean errors: of the batch and the KV cache as shares of what the engine has; of times in seconds an iteration."""

    batch: float
    kv: float
    drift_s: float


@dataclass(slots=True)
class _Poll:
    """A Control that only looks: requests that were admitted, and blocks of their cache, by the first one's tokens."""

    block_tokens: int
    name: str = "poll"
    period_s: float = _POLL_S
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)

    def step(self, view: FleetView) -> Answer:
        own = view.sequences(0)
        tokens = int(own.generated_tokens[own.number == 0].sum())
        if tokens and tokens not in self.seen:
            self.seen[tokens] = own.number.size, int((-(-own.kv_tokens // self.block_tokens)).sum())
        return Answer()


@cache
def projection_errors(trees: bool = False, most_prompt: int = _MOST_PROMPT) -> ProjectionErrors:
    """Runs the micro-traces. `trees`: speeds are the paper's model's, which knows of a prompt as one more row of the
    batch; else those of the engine model, with what prompts cost. `most_prompt`: of the longest prompt, tokens."""
    rng = np.random.default_rng(1)
    top = InstanceSpec("engine", _MODEL, _GPU, _TP, _CLOCKS_MHZ[-1], _ENGINE)
    room = top.kv_capacity, top.max_sequences, top.tokens_per_iteration
    table = engine_speed(_MODEL, _GPU, _TP, _ENGINE, *room, trees=trees)
    found = [_micro_trace(replace(top, mhz=mhz), table, most_prompt, rng) for mhz in _CLOCKS_MHZ]
    return ProjectionErrors(*(float(np.concatenate(column).mean()) for column in zip(*found, strict=True)))


def _micro_trace(
    spec: InstanceSpec, table: SpeedTable, most_prompt: int, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Returns the errors of batch and KV cache at each poll, and of the time of each request's end an iteration.

    Its first request is the longest, so that the tokens that this has count the iterations.
    """
    prompt, output = (rng.integers(1, most + 1, _REQUESTS) for most in (most_prompt, _MOST_OUTPUT))
    output[0] = _MOST_OUTPUT + 1
    none = np.zeros(_REQUESTS, np.int64)
    board = Scoreboard(none, prompt, output, np.full(_REQUESTS, np.inf), none.astype(np.bool_))
    coming = project(board, table.shape.block_tokens, table.shape.chunk_tokens)
    poll = _Poll(table.shape.block_tokens)
    fleet = FleetSpec((spec,), (PoolSpec("all", (0,)),))
    ran = simulate(fleet, load(np.zeros(_REQUESTS), prompt, output), controls=(poll,))
    tokens, (batch, blocks) = np.array(list(poll.seen)), np.array(list(poll.seen.values())).T
    under_way = coming.ends[0] - output[0] + tokens  # iterations that ended before
    look = outlook(coming, table, int(np.searchsorted(table.clocks_mhz, spec.mhz)))
    return (
        np.abs(coming.batch[under_way] / batch - 1.0),
        np.abs(coming.kv_blocks[under_way] / blocks - 1.0),
        np.abs(ran.rows["finish_s"] - look.finish_s) / coming.ends,
    )
