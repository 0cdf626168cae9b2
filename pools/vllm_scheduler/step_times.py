"""How long an engine's steps take, learned from those it ran, and what of a prompt fits beside decodes (DynaServe).

DynaServe (section 4.2, Algorithm 2) keeps a batch within the ITL objective: all decodes, and prompt tokens within a
budget that observed batch times give. Here the times are a fit of

    t = c0 + c1 prompt tokens + c2 pairs + c3 decodes + c4 context tokens,  all c >= 0,

the terms of GreenServe's engine model: weights and overhead, a prompt's work, its attention (pairs = new x (cached +
new / 2)), a decode's work, and the reading of its context. Least squares of the relative error; old steps are
forgotten, so that a change of clock is learned within some hundred steps. Pure, and plain Python: five unknowns need no
library.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

ENOUGH_STEPS = 32  # before there is a fit at all, and of them
ENOUGH_PROMPT_STEPS = 6  # so many with prompt tokens
KEEP = 0.99  # of a step's weight at the next one: half is gone after 69
FIT_EVERY = 8
SWEEPS = 60
OUTLIER = 3.0  # a step that took so many times longer than expected was held up: it counts as if it took no longer
LEAST_MARGIN, MOST_MARGIN = 0.05, 0.5
_SHORTEST_S = 1e-6
RECENT = 200  # steps whose errors make the margin
_SCALES = (1.0, 1e-3, 1e-6, 1e-2, 1e-5)  # of the features, so that all are near 1


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The work in a step. `pairs`: token pairs of the prompts' attention; `context_tokens`: of all decodes."""

    prompt_tokens: int = 0
    pairs: float = 0.0
    decodes: int = 0
    context_tokens: int = 0

    def features(self) -> tuple[float, ...]:
        raw = (1.0, self.prompt_tokens, self.pairs, self.decodes, self.context_tokens)
        return tuple(value * scale for value, scale in zip(raw, _SCALES, strict=True))


def pairs(new_tokens: int, cached_tokens: int) -> float:
    return new_tokens * (cached_tokens + new_tokens / 2.0)


class StepTimes:
    """Not for threads."""

    def __init__(self) -> None:
        size = len(_SCALES)
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
        late = sorted(self._errors)[int(0.98 * (len(self._errors) - 1))]
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
            self._fit()

    def _fit(self) -> None:
        """Coordinate descent on the normal equations, each coefficient held at 0 or above; from the last fit on."""
        found = self.coefficients
        for _ in range(SWEEPS):
            for i, products in enumerate(self._products):
                own = products[i]
                if own > 0.0:
                    rest = sum(p * c for p, c in zip(products, found, strict=True)) - own * found[i]
                    found[i] = max(0.0, (self._targets[i] - rest) / own)

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
        linear = self.coefficients[1] * _SCALES[1] + self.coefficients[2] * _SCALES[2] * cached_tokens
        square = self.coefficients[2] * _SCALES[2] / 2.0
        room_s = within_s - self.predict_s(StepLoad(0, 0.0, decodes, context_tokens))
        if room_s <= 0.0:
            return 0
        root = math.sqrt(linear * linear + 4.0 * square * room_s)
        if linear + root <= 0.0:  # prompts have cost nothing so far
            return most
        return min(most, int(2.0 * room_s / (linear + root)))
