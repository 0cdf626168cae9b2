"""How long an engine's steps take, and what of a prompt fits beside decodes (DynaServe, section 4.2, Algorithm 2).

The paper keeps a batch within the ITL objective: all decodes, then prompts in order of arrival, within a budget of
tokens that observed batch times give. The text of the paper has lost the listing; this follows its prose. Here the
times are a fit of

    t = c0 + c1 prompt tokens + c2 pairs + c3 decodes + c4 context tokens,  all c >= 0,

the terms of GreenServe's engine model: weights and overhead, a prompt's work, its attention (pairs = new x (cached +
new / 2)), a decode's work, and the reading of its context. Least squares of the relative error; old steps are
forgotten, so that a change of clock is learned within some hundred steps.

vLLM's process runs this module (`pools.vllm_scheduler`): it needs nothing but Python. The simulator compiles
`nonnegative` and `prompt_tokens_within` for itself (`step_fit`). Compiled where it is imported: see core.compiled.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

ENOUGH_STEPS = 32  # before there is a fit at all, and of them
ENOUGH_PROMPT_STEPS = 6  # so many with prompt tokens
KEEP = 0.99  # of a step's weight at the next one: half is gone after 69
FIT_EVERY = 8
SWEEPS = 60
OUTLIER = 3.0  # a step that took so many times longer than expected was held up: it counts as if it took no longer
LATE = 0.98  # share of steps that the margin is for
LEAST_MARGIN, MOST_MARGIN = 0.05, 0.5
LEAST_PROMPT_TOKENS = 16  # of a step, where any wait: under the strictest limit prompts still come to their end
_SHORTEST_S = 1e-6
_STILL = 1e-9  # s: coefficients that a sweep moves by no more have been found
RECENT = 200  # steps whose errors make the margin
SCALES = (1.0, 1e-3, 1e-6, 1e-2, 1e-5)  # of the features, so that all are near 1


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The work in a step. `pairs`: token pairs of the prompts' attention; `context_tokens`: of all decodes."""

    prompt_tokens: int = 0
    pairs: float = 0.0
    decodes: int = 0
    context_tokens: int = 0

    def features(self) -> tuple[float, ...]:
        raw = (1.0, self.prompt_tokens, self.pairs, self.decodes, self.context_tokens)
        return tuple(value * scale for value, scale in zip(raw, SCALES, strict=True))


def pairs(new_tokens: int, cached_tokens: int) -> float:
    """Returns the token pairs of a prompt's attention: each new token with those in the cache and half of the new."""
    return new_tokens * (cached_tokens + new_tokens / 2.0)


def nonnegative(products: Any, targets: Any, found: Any, sweeps: int) -> None:
    """Solves normal equations, of shapes (n, n) and (n,), by coordinate descent from `found` on, which it changes: each
    coefficient is held at 0 or above. Ends before so many sweeps where one changes nothing."""
    for _ in range(sweeps):
        moved = 0.0
        for i in range(len(found)):
            row = products[i]
            own = row[i]
            if own > 0.0:
                rest = -own * found[i]
                for j in range(len(found)):
                    rest += row[j] * found[j]
                before = found[i]
                found[i] = max(0.0, (targets[i] - rest) / own)
                moved = max(moved, abs(found[i] - before))
        if moved <= _STILL:
            return


def prompt_tokens_within(
    costs: Any, decodes: float, context_tokens: float, cached_tokens: float, within_s: float, most: int
) -> int:
    """Returns the prompt tokens up to `most`, as of one prompt, with which a step takes no longer than `within_s`.

    `costs`: c0 to c4, in s; `cached_tokens`: of that prompt, `context_tokens`: of all decodes.
    """
    linear = costs[1] + costs[2] * cached_tokens
    room_s = within_s - (costs[0] + costs[3] * decodes + costs[4] * context_tokens)
    if room_s <= 0.0:
        return 0
    root = math.sqrt(linear * linear + 2.0 * costs[2] * room_s)
    if linear + root <= 0.0:  # prompts have cost nothing so far
        return most
    found = 2.0 * room_s / (linear + root)
    return most if found >= most else int(found)


class StepTimes:
    """The times of one engine, learned from the steps that it ran. Not for threads."""

    def __init__(self) -> None:
        size = len(SCALES)
        self._products = [[0.0] * size for _ in range(size)]
        self._targets = [0.0] * size
        self.coefficients = [0.0] * size
        self.steps = self.prompt_steps = 0
        self._errors: deque[float] = deque(maxlen=RECENT)

    @property
    def ready(self) -> bool:
        return self.steps >= ENOUGH_STEPS and self.prompt_steps >= ENOUGH_PROMPT_STEPS

    @property
    def margin(self) -> float:
        """Returns how much longer than predicted slow recent steps took: the share that 98 of 100 stayed within."""
        if not self._errors:
            return MOST_MARGIN
        late = sorted(self._errors)[int(LATE * (len(self._errors) - 1))]
        return min(MOST_MARGIN, max(LEAST_MARGIN, late))

    def observe(self, load: StepLoad, took_s: float) -> None:
        """Takes a step in; one that was held up counts as no more than so many times what was expected."""
        if not took_s > 0.0:
            return
        expected_s = took_s
        if self.ready:
            expected_s = max(self.predict_s(load), _SHORTEST_S)
            self._errors.append(took_s / expected_s - 1.0)
            took_s = min(max(took_s, expected_s / OUTLIER), expected_s * OUTLIER)
        row = load.features()
        weight = 1.0 / (expected_s * expected_s)
        for i, value in enumerate(row):
            products = self._products[i]
            for j, other in enumerate(row):
                products[j] = KEEP * products[j] + weight * value * other
            self._targets[i] = KEEP * self._targets[i] + weight * value * took_s
        self.steps += 1
        self.prompt_steps += load.prompt_tokens > 0
        if self.steps % FIT_EVERY == 0 or self.steps == ENOUGH_STEPS:
            nonnegative(self._products, self._targets, self.coefficients, SWEEPS)

    def predict_s(self, load: StepLoad) -> float:
        return sum(c * value for c, value in zip(self.coefficients, load.features(), strict=True))

    def prompt_s(self, tokens: int) -> float:
        """Returns what computing so many tokens of a prompt adds to a step; 0 before there is a fit."""
        if not self.ready:
            return 0.0
        return self.predict_s(StepLoad(tokens, pairs(tokens, 0))) - self.predict_s(StepLoad())

    def prompt_budget(self, decodes: int, context_tokens: int, cached_tokens: int, limit_s: float, most: int) -> int:
        """Returns the prompt tokens up to `most`, as of one prompt, with which a step keeps `limit_s` less its margin.

        Before there is a fit: `most`.
        """
        if not self.ready:
            return most
        within_s = limit_s / (1.0 + self.margin)
        costs = [c * scale for c, scale in zip(self.coefficients, SCALES, strict=True)]
        return prompt_tokens_within(costs, decodes, context_tokens, cached_tokens, within_s, most)
