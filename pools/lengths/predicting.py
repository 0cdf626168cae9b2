"""Answers what gateways ask, and learns from requests that ended: the predictor's process without its socket and files.

A prompt's text is looked at once, when its gateway asks. What is kept of it until its request has ended is what the
predictor makes of it: hashed features, from which no text can be read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from core.length_odds import LengthOdds
from core.ports import RequestFeatures
from core.predictors.text_predictor import MEMORY

from .messages import Ask, Lesson, features_of
from .reading import Reader, Then

MOST_OPEN = 8_192  # requests that have not ended, of all gateways; of more, the oldest teach nothing


class TextPredictor(Protocol):
    """Learns from texts while it serves (`core.predictors`). Its memory is bounded."""

    def look(self, texts: Sequence[str]) -> Any:
        """Returns hashed features of a prompt's texts."""

    def predict(
        self,
        service: str,
        tenant_id: int | None,
        features: Any,
        prompt_tokens: int,
        request: RequestFeatures,
        borders: tuple[int, ...],
    ) -> LengthOdds | None: ...

    def observe(
        self,
        service: str,
        tenant_id: int | None,
        features: Any,
        prompt_tokens: int,
        request: RequestFeatures,
        output_tokens: int,
    ) -> None: ...

    def state(self) -> Mapping[str, np.ndarray]:
        """Returns what it has learned, for `TextPredictor.restored` of a later process."""


class _Open(NamedTuple):
    """A request that has not ended. `seen`: what the predictor made of its text."""

    service: str
    features: RequestFeatures
    seen: Any


class Predicting:
    """All predictors of a process: the memory of prompts answers, else the encoder if it is in time, else the words.

    Where others have answered a prompt, what they took says more than any reading of it: 0.59 of the answers in
    docs/predictors.md are in the right fifth, by a small encoder 0.3.

    Args:
        predictor: Learns from every lesson, whoever has answered.
        reader: Of a trained encoder; None: there is none.
    """

    def __init__(self, predictor: TextPredictor, reader: Reader | None = None) -> None:
        self._predictor = predictor
        self._reader = reader
        self._open: OrderedDict[tuple[Hashable, int], _Open] = OrderedDict()
        self.lessons = 0

    def ask(self, gateway: Hashable, ask: Ask, then: Then) -> None:
        """Calls `then` with what is predicted, at once or when the encoder has read the prompt.

        Args:
            gateway: Whose numbers the ask's is one of.
        """
        seen, features = self._predictor.look(ask.texts), features_of(ask)
        self._open[gateway, ask.number] = _Open(ask.service, features, seen)
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        learned = self._predictor.predict(ask.service, ask.tenant_id, seen, ask.prompt_tokens, features, ask.borders)
        remembered = learned is not None and learned.predictor == MEMORY
        if remembered or self._reader is None or not self._reader.serves(ask.service):
            then(learned, unread=False)
            return
        self._reader.read(ask.service, "\n".join(ask.texts), ask.until_s, partial(_else, learned, then))

    def learn(self, gateway: Hashable, lesson: Lesson) -> None:
        """Takes in how a request ended; one whose features are not kept any more teaches nothing."""
        known = self._open.pop((gateway, lesson.number), None)
        if known is None:
            return
        tenant_id = known.features.tenant_id
        self._predictor.observe(
            known.service, tenant_id, known.seen, lesson.prompt_tokens, known.features, lesson.output_tokens
        )
        self.lessons += 1

    def forget(self, gateway: Hashable) -> None:
        """A gateway has left: its requests will teach nothing."""
        for key in [key for key in self._open if key[0] == gateway]:
            del self._open[key]

    def go_on_with(self, predictor: TextPredictor) -> None:
        """Puts another predictor in the place of the one that learns; requests under way teach neither."""
        self._predictor = predictor
        self._open.clear()

    def state(self) -> dict[str, np.ndarray]:
        """Returns a copy of what has been learned, which does not change while it is written."""
        return {name: np.array(values) for name, values in self._predictor.state().items()}


def _else(learned: LengthOdds | None, then: Then, odds: LengthOdds | None, unread: bool) -> None:
    """Puts what was learned from words in the place of odds that the encoder does not give."""
    then(learned if odds is None else odds, unread=unread)
