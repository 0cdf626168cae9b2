"""The class of a request and the instance it goes to: the core's pure functions, fed from the gateway's memory.

The ports of the request plane to come are here: an `OutputLengthPredictor` is passed in, and `Router.route` is the
one place that chooses. There is no queue in the gateway yet: engines queue, first come first served.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from pools import wire
from scheduler.core import routing
from scheduler.core.classify import classify
from scheduler.core.ports import OutputLengthPredictor

from .fleet import Instance, Service
from .metrics import Histogram

START_TOKENS_PER_BYTE = 0.25
_RATIO_WEIGHT = 0.05  # of a new observation in the average
_MIN_TEXT_BYTES = 64  # below, the chat template's own tokens would drown the text's


class TextEstimator:
    """Tokens of a text from its UTF-8 bytes: a ratio for each service and endpoint, learned from the engines' usage."""

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, bool], float] = {}

    def tokens(self, service: str, chat: bool, text_bytes: int) -> int:
        return max(1, round(text_bytes * self._ratios.get((service, chat), START_TOKENS_PER_BYTE)))

    def observe(self, service: str, chat: bool, text_bytes: int, prompt_tokens: int) -> None:
        if text_bytes < _MIN_TEXT_BYTES:
            return
        ratio = self._ratios.get((service, chat), START_TOKENS_PER_BYTE)
        self._ratios[service, chat] = ratio + _RATIO_WEIGHT * (prompt_tokens / text_bytes - ratio)


class Router:
    """Chooses the instance of a request, and learns from those that ended."""

    def __init__(self, predictor: OutputLengthPredictor, duration_s: Histogram) -> None:
        self._predictor = predictor
        self._duration_s = duration_s
        self.estimator = TextEstimator()

    def predict_output(self, service: Service, prompt_tokens: int, output_bound: int | None) -> int:
        room = max(1, service.max_model_len - prompt_tokens)
        bound = room if output_bound is None else min(room, output_bound)
        return self._predictor.predict(service.name, prompt_tokens, bound)

    def class_of(self, service: Service, prompt_tokens: int, output_tokens: int) -> str | None:
        """None: the service has no classes (yet)."""
        return classify(service.classes, prompt_tokens, output_tokens) if service.classes else None

    def route(
        self, service: Service, prompt_tokens: int, output_tokens: int, class_name: str | None, tried: Collection[str]
    ) -> tuple[Instance, routing.Choice] | None:
        """The instance to send to, none of those `tried`; None: nothing is left."""
        begun_s = time.perf_counter()
        choosable = service.choosable(tried, time.monotonic())
        request = routing.RouteRequest(
            prompt_tokens=prompt_tokens,
            predicted_output_tokens=output_tokens,
            class_rank=service.ranks.get(class_name or "", 0),
            limits=service.limits,
        )
        choice = routing.choose([i.candidate() for i in choosable], request)
        self._duration_s.observe(time.perf_counter() - begun_s)
        if choice is None:
            return None
        return next(i for i in choosable if i.uid == choice.uid), choice

    def learn(self, row: wire.RequestRow, text_bytes: int) -> None:
        """Takes in a request that ended well with the engine's own counts."""
        if row.status != "ok" or row.tokens_source != "usage" or not row.prompt_tokens or not row.output_tokens:
            return
        self._predictor.observe(row.service, row.prompt_tokens, row.output_tokens)
        if text_bytes:
            self.estimator.observe(row.service, row.endpoint == "chat", text_bytes, row.prompt_tokens)
