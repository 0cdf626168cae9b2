"""Predicts the length of answers from prompts' text, learns while it serves, and measures itself: what a process holds.

    features = predictor.look(texts)  # hashes: all that is to be kept of a prompt
    odds = predictor.predict(service, tenant_id, features, prompt_tokens, request)
    predictor.observe(service, tenant_id, features, prompt_tokens, request, output_tokens)

Each request that ended is predicted again before anything is learned from it. That measures what a prediction would
have been worth, whether or not one was asked for; and no model answers before it did better than to say of each class
how often it comes.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.length_odds import LengthOdds
from core.ports import RequestFeatures

from .answer_scale import AnswerScale
from .prompt_memory import SemanticLengthCache
from .text_features import TextFeatures, TextHasher
from .text_lengths import TextLengths

TEXT, MEMORY = "text", "memory"
LEAST_MEASURED = 64  # requests before a predictor may have earned its place
LEAST_GAIN = 0.01  # nats a request over the base rate
WINDOW = 512  # requests that running means look back over, as an exponential mean does
_DOUBT = 20.0  # requests that slope and spread of a model's scores start with
_LAYOUT = 1  # of the state
_LEAST_DEVIATION = 0.05  # of scores, whose own is 1

State = dict[str, NDArray[Any]]


@dataclass(slots=True)
class RunningError:
    """Says how far off a predictor was of late, for one service. Means are exponential over WINDOW requests.

    Args:
        requests: That it was measured on, in all.
        right: The share whose class was the most probable.
        error_tokens: Mean absolute error of the median.
        loss: Mean of minus the logarithm of the probability that the true class was given, in nats.
        base_loss: The same of saying how often each class comes.
        text_loss: The same of the text's odds, on the same requests.
    """

    requests: int = 0
    right: float = 0.0
    error_tokens: float = 0.0
    loss: float = 0.0
    base_loss: float = 0.0
    text_loss: float = 0.0

    def add(self, odds: LengthOdds, output_tokens: int, base: float, text: float) -> None:
        number = odds.class_of(output_tokens)
        self.requests += 1
        weight = 1.0 / min(self.requests, WINDOW)
        self.right += weight * (float(odds.most_probable() == number) - self.right)
        self.error_tokens += weight * (abs(odds.quantile(0.5) - output_tokens) - self.error_tokens)
        self.loss += weight * (_surprise(odds.probabilities[number]) - self.loss)
        self.base_loss += weight * (_surprise(base) - self.base_loss)
        self.text_loss += weight * (_surprise(text) - self.text_loss)

    @property
    def earned(self) -> bool:
        """Says whether the predictor does better than the base rate."""
        return self.requests >= LEAST_MEASURED and self.loss < self.base_loss - LEAST_GAIN


def _surprise(probability: float) -> float:
    return -math.log(max(1e-6, probability))


@dataclass(slots=True)
class Calibration:
    """Says by how much a model's scores are to be stretched, and how far off they then are, for one service.

    `error` is in parts of the variance that the model itself expects.
    """

    requests: float = _DOUBT
    square: float = 1.0
    product: float = 1.0
    error: float = 1.0

    def of(self, score: float, variance: float) -> tuple[float, float]:
        """Returns the mean and the deviation of the true score."""
        return self.product / self.square * score, max(_LEAST_DEVIATION, math.sqrt(self.error * variance))

    def add(self, said: float, variance: float, true: float) -> None:
        self.requests = min(self.requests + 1.0, float(WINDOW))
        weight = 1.0 / self.requests
        off = true - self.product / self.square * said
        self.error += weight * (off * off / variance - self.error)
        self.square += weight * (said * said + 1e-3 - self.square)
        self.product += weight * (said * true + 1e-3 - self.product)


class LengthPredictor:
    """Learned predictions of answers' lengths for all services. Not for several threads at once.

    `scales` and `memory` are for those who look at it; they are not to be changed while it serves.

    Args:
        salt: Keys the hashes of words, 16 bytes or more. None: one is drawn, and kept in `state`; whoever has the state
            can then test guesses of words that were seen. With a salt of their own keepers keep it elsewhere.
    """

    def __init__(self, salt: bytes | None = None) -> None:
        self._drawn = secrets.token_bytes(32) if salt is None else None
        self._hasher = TextHasher(salt or self._drawn or b"")
        self._text = TextLengths()
        self.memory = SemanticLengthCache()
        self.scales: dict[str, AnswerScale] = {}
        self._calibrations: dict[tuple[str, str], Calibration] = {}
        self._errors: dict[tuple[str, str], RunningError] = {}

    def look(self, texts: Sequence[str]) -> TextFeatures:
        """Returns what is to be kept of a request's texts until it has ended."""
        return self._hasher.look(texts)

    def predict(
        self,
        service: str,
        tenant_id: int | None,
        features: TextFeatures,
        prompt_tokens: int,
        request: RequestFeatures,
        borders: tuple[int, ...] = (),
    ) -> LengthOdds | None:
        """Returns the odds of an answer's length; None: too little was learned to do better than the base rate.

        `borders`: lengths in tokens that the odds have borders at, beside the fifths'; see `AnswerScale.odds`.
        """
        error = self._errors.get((service, MEMORY))
        if error is not None and error.earned and error.loss < error.text_loss:
            odds = self.memory_odds(service, tenant_id, features, borders=borders)
            if odds is not None:
                return odds
        error = self._errors.get((service, TEXT))
        if error is None or not error.earned:
            return None
        return self.text_odds(service, features, prompt_tokens, request, borders)

    def observe(
        self,
        service: str,
        tenant_id: int | None,
        features: TextFeatures,
        prompt_tokens: int,
        request: RequestFeatures,
        output_tokens: int,
    ) -> None:
        """Learns from a request that ended well, as `predict` would have been asked for it.

        Raises ValueError for an answer of less than one token.
        """
        if output_tokens < 1:
            raise ValueError(f"an answer that is learned from has a token or more, not {output_tokens}")
        scale = self.scales.setdefault(service, AnswerScale())
        if scale.ready:
            true = scale.score(output_tokens)
            said = self._text.score(service, features, prompt_tokens, request)
            odds = self._odds(service, TEXT, said, 1.0)
            row = self.memory.find(_owner(tenant_id), features)
            remembered = None if row is None else self.memory.score(service, row)
            if remembered is not None:
                self._measure(service, self._odds(service, MEMORY, *remembered), odds, output_tokens)
                self._calibration(service, MEMORY).add(*remembered, true)
            if row is None:  # else what the text says has been learned from the same prompt, and looks too good
                self._measure(service, odds, odds, output_tokens)
                self._calibration(service, TEXT).add(said, 1.0, true)
            self._text.learn(service, features, prompt_tokens, request, true)
        self.remember(service, tenant_id, features, output_tokens)

    def remember(self, service: str, tenant_id: int | None, features: TextFeatures, output_tokens: int) -> None:
        """Takes in an answer for the service's scale and for the memory of prompts alone."""
        scale = self.scales.setdefault(service, AnswerScale())
        score = scale.score(output_tokens) if scale.ready else None
        scale.add(output_tokens)
        self.memory.remember(service, _owner(tenant_id), features, output_tokens, score)
        if self.memory.due:
            self.memory.relearn(self.scales)

    def text_odds(
        self,
        service: str,
        features: TextFeatures,
        prompt_tokens: int,
        request: RequestFeatures,
        borders: tuple[int, ...] = (),
    ) -> LengthOdds:
        """Returns what the text says, whether or not it has earned its place. KeyError: the service is unknown."""
        return self._odds(service, TEXT, self._text.score(service, features, prompt_tokens, request), 1.0, borders)

    def memory_odds(
        self,
        service: str,
        tenant_id: int | None,
        features: TextFeatures,
        repeated: bool = True,
        borders: tuple[int, ...] = (),
    ) -> LengthOdds | None:
        """Returns what like prompts say, whether or not they have earned their place; None: there are none.

        `repeated` False leaves the service's own answers to them out. KeyError: the service is unknown.
        """
        row = self.memory.find(_owner(tenant_id), features)
        found = None if row is None else self.memory.score(service, row, repeated)
        return None if found is None else self._odds(service, MEMORY, *found, borders)

    def forget_tenant(self, tenant_id: int) -> None:
        """Forgets a tenant's prompts. What words and sizes bring stays: it is no one's."""
        self.memory.forget_tenant(tenant_id)

    def errors(self) -> Mapping[tuple[str, str], RunningError]:
        """Returns the running error of each predictor, by service and name."""
        return self._errors

    def state(self) -> State:
        """Returns all that was learned, as arrays of numbers by name."""
        remembered, memory = self.memory.state()
        about = {
            "layout": _LAYOUT,
            "mark": self._hasher.mark.hex(),
            "salt": None if self._drawn is None else self._drawn.hex(),
            "services": list(self.scales),
            "remembered": remembered,
            "errors": [
                [*key, e.requests, e.right, e.error_tokens, e.loss, e.base_loss, e.text_loss]
                for key, e in self._errors.items()
            ],
            "calibrations": [[*key, c.requests, c.square, c.product, c.error] for key, c in self._calibrations.items()],
        }
        lengths = [scale.by_arrival() for scale in self.scales.values()]
        return {
            "about": np.frombuffer(json.dumps(about).encode(), np.uint8).copy(),
            "lengths": np.array([tokens for own in lengths for tokens in own], np.int64),
            "lengths_by_service": np.array([len(own) for own in lengths], np.int64),
            **{f"text.{name}": values for name, values in self._text.state().items()},
            **{f"memory.{name}": values for name, values in memory.items()},
        }

    @classmethod
    def restored(cls, state: Mapping[str, NDArray[Any]], salt: bytes | None = None) -> LengthPredictor:
        """Returns the predictor that gave `state`.

        Raises:
            ValueError: It is no such state, or was made with another salt.
        """
        try:
            about = json.loads(state["about"].tobytes())
            if about["layout"] != _LAYOUT:
                raise ValueError(f"its layout is {about['layout']}, where this release reads {_LAYOUT}")
            found = cls(bytes.fromhex(about["salt"]) if salt is None and about["salt"] else salt)
            if salt is None:
                found._drawn = bytes.fromhex(about["salt"])
            found._restore(about, state)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise ValueError(f"no state of a length predictor: {error}") from error
        return found

    def _restore(self, about: Mapping[str, Any], state: Mapping[str, NDArray[Any]]) -> None:
        if about["mark"] != self._hasher.mark.hex():
            raise ValueError("it was learned with another salt")
        services = [str(name) for name in about["services"]]
        lengths, counts = state["lengths"], state["lengths_by_service"]
        if lengths.min(initial=1) < 1 or counts.min(initial=0) < 0:
            raise ValueError("answers have a token or more")
        if len(services) != counts.size or counts.sum() != lengths.size:
            raise ValueError("answers are not as many as its services have")
        ends = np.cumsum(counts)
        for name, end, count in zip(services, ends.tolist(), counts.tolist(), strict=True):
            self.scales[name] = AnswerScale(lengths[end - count : end].tolist())
        for service, name, *figures in about["errors"]:
            self._errors[service, name] = RunningError(int(figures[0]), *map(float, figures[1:]))
        for service, name, *figures in about["calibrations"]:
            self._calibrations[service, name] = Calibration(*map(float, figures))
        self._text.restore({name: state[f"text.{name}"] for name in ("weights", "squares")})
        memory = {name: state[f"memory.{name}"] for name in ("tenants", "signatures", "tokens")}
        self.memory.restore([str(name) for name in about["remembered"]], memory, self.scales)

    def _calibration(self, service: str, predictor: str) -> Calibration:
        # What text is worth is measured on new prompts alone, of which a single service may see few.
        return self._calibrations.setdefault((service if predictor == MEMORY else "", predictor), Calibration())

    def _odds(
        self, service: str, predictor: str, score: float, variance: float, borders: tuple[int, ...] = ()
    ) -> LengthOdds:
        return self.scales[service].odds(predictor, *self._calibration(service, predictor).of(score, variance), borders)

    def _measure(self, service: str, odds: LengthOdds, text: LengthOdds, output_tokens: int) -> None:
        number = odds.class_of(output_tokens)
        base = self.scales[service].base(number)
        error = self._errors.setdefault((service, odds.predictor), RunningError())
        error.add(odds, output_tokens, base, text.probabilities[number])


def _owner(tenant_id: int | None) -> int:
    """Returns whose a prompt is: requests without a tenant are one tenant's."""
    return -1 if tenant_id is None else tenant_id
