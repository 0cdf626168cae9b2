"""The mean request of those that came last: what a split is chosen for. Gateways start with this module."""

from __future__ import annotations

from dataclasses import dataclass

_REMEMBERED = 200  # requests


@dataclass(frozen=True, slots=True)
class RequestMix:
    """Means of the prompts' and the predicted outputs' tokens; once there are many, each counts a little less than the
    next one."""

    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    requests: int = 0

    def after(self, prompt_tokens: int, output_tokens: int) -> RequestMix:
        """Returns the mix with one request more."""
        requests = min(self.requests + 1, _REMEMBERED)
        prompt = self.prompt_tokens + (prompt_tokens - self.prompt_tokens) / requests
        output = self.output_tokens + (output_tokens - self.output_tokens) / requests
        return RequestMix(prompt, output, requests)
