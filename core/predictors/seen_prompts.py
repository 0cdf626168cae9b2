"""Remembers prompts by their digest: a prompt that comes again has the same length, and most often a like answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from core.ports import RequestFeatures

CAPACITY = 16_384  # prompts; some 250 bytes each
MEMORY = 16  # answers that the mean looks back over, so that it follows an engine or a model that changes


@dataclass(slots=True)
class SeenPrompt:
    """`prompt_tokens` is the engine's own count; `output_tokens` the mean of the `answers` so far."""

    prompt_tokens: int
    output_tokens: float
    answers: int = 1


class SeenPrompts:
    """Least recently used first out, for requests that have a digest.

    A digest names tenant, service, prompt and limit (`RequestFeatures.digest`): nobody learns of another's prompts, and
    an answer cut off at a small `max_tokens` says nothing of what the prompt brings under a larger one.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError("a cache holds at least one prompt")
        self._capacity = capacity
        self._seen: OrderedDict[Hashable, SeenPrompt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, digest: Hashable) -> SeenPrompt | None:
        """Returns what is known of a prompt. Asking does not keep it from being forgotten: only `observe` does."""
        return None if digest is None else self._seen.get(digest)

    def observe(
        self, service: str, prompt_tokens: int, output_tokens: int, features: RequestFeatures | None = None
    ) -> None:
        if features is None or features.digest is None:
            return
        known = self._seen.get(features.digest)
        if known is None:
            self._seen[features.digest] = SeenPrompt(prompt_tokens, float(output_tokens))
            if len(self._seen) > self._capacity:
                self._seen.popitem(last=False)
            return
        self._seen.move_to_end(features.digest)
        known.prompt_tokens = prompt_tokens
        known.answers = min(MEMORY, known.answers + 1)
        known.output_tokens += (output_tokens - known.output_tokens) / known.answers
