"""What it costs to look at a prompt, to predict the length of its answer by text and by memory, and to learn from it.

    python -m benchmarks.length_predictor

Prints microseconds of processor time a request. Prompts are made up of 8 to 60 words; 20 services of a tenant have
answered half of them, and 18 the half that is asked. Weights of peers are
kept: who answered a prompt is often the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from core.predictors.length_scores import request_of
from core.predictors.text_predictor import LengthPredictor

SERVICES, PROMPTS, ROUNDS = 20, 300, 7


def main() -> None:
    rng = np.random.default_rng(1)
    words = [f"word{number}" for number in range(2000)]
    prompts = [" ".join(rng.choice(words, rng.integers(8, 60))) + "?" for _ in range(2 * PROMPTS)]
    requests = [request_of(prompt) for prompt in prompts]
    predictor = LengthPredictor(b"of a benchmark: 16 bytes or more")
    features = [predictor.look([prompt]) for prompt in prompts]
    levels = rng.normal(size=len(prompts))
    for number in range(PROMPTS):
        for service in range(SERVICES):
            tokens = max(1, int(np.exp(5.0 + levels[number] + 0.3 * rng.normal())))
            predictor.observe(f"s{service}", 1, features[number], 40, requests[number], tokens)
    # What is asked has been answered by all services but two.
    asked = range(PROMPTS, 2 * PROMPTS)
    for number in asked:
        for service in range(2, SERVICES):
            predictor.remember(f"s{service}", 1, features[number], max(1, int(np.exp(5.0 + levels[number]))))
    found = {
        "look": _us(lambda n: predictor.look([prompts[n]]), asked),
        "text": _us(lambda n: predictor.text_odds("s0", features[n], 40, requests[n]), asked),
        "memory": _us(lambda n: predictor.memory_odds("s0", 1, features[n]), asked),
        "weights of other peers": _us(lambda n: predictor.memory._weigh(0, np.arange(2, SERVICES)), asked),
        "observe": _us(lambda n: predictor.observe("s1", 1, features[n], 40, requests[n], 100), asked),
    }
    for name, spent in found.items():
        print(f"{name:24} {spent:6.0f} us")
    print(f"{'look, text and memory':24} {found['look'] + found['text'] + found['memory']:6.0f} us, of 100")


def _us(work: Callable[[int], object], numbers: range) -> float:
    """Returns the median processor time of a call, in the best of some rounds."""
    return 1e6 * min(float(np.median([_spent(work, number) for number in numbers])) for _ in range(ROUNDS))


def _spent(work: Callable[[int], object], number: int) -> float:
    began = time.thread_time()
    work(number)
    return time.thread_time() - began


if __name__ == "__main__":
    main()
