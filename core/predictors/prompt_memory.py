"""Remembers prompts by their words, and how long each service's answers to them were, beside that service's others.

A prompt that other services have answered says much of how long this one's answer will be. Scores (AnswerScale) of
services to the same prompt are taken as jointly normal: the score to expect of one is the conditional mean, given those
of the services that answered most like it so far. Their correlations are learned from the prompts that are remembered,
and drawn towards what is usual among services as far as two have few prompts in common.

Prompts are found again by MinHash signatures in bands (Indyk and Motwani, STOC 1998), within one tenant alone: nobody's
prompts tell of another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .answer_scale import AnswerScale
from .text_features import SIGNATURE, Hashes, TextFeatures, likeness

PROMPTS = 8192  # least recently answered first out
SERVICES = 256  # likewise; at most 16 MB in all
ALIKE = 0.7  # share of words and pairs in common from which prompts count as the same
PEERS = 32  # services whose answers count, those most like the one that is asked
_BANDS = 16
_NUGGET = 0.1  # variance of a score that no other service shares
_USUAL, _DOUBT = 0.5, 10.0  # correlation of services without history, and the prompts that it weighs as much as
_REPEAT = 0.8  # correlation of a service's answers to the same prompt
_RELEARN_SHARE, _RELEARN_AT_LEAST, _RELEARN_AT_MOST = 0.25, 64, 8192  # new answers before correlations are learned anew

Floats = NDArray[np.float32]


class MinHashIndex:
    """The newest prompt for each band of a signature; it is compared as a whole."""

    def __init__(self) -> None:
        self._newest: dict[tuple[int, int, bytes], int] = {}
        self._known: dict[int, tuple[int, Hashes]] = {}

    def find(self, tenant: int, features: TextFeatures) -> int | None:
        if not features.grams.size:
            return None
        found = {self._newest.get(key) for key in _bands(tenant, features.signature)} - {None}
        likes = [(likeness(self._known[n][1], features.signature), n) for n in found if n is not None]
        alike, number = max(likes, default=(0.0, -1))
        return number if alike >= ALIKE else None

    def add(self, number: int, tenant: int, features: TextFeatures) -> None:
        self._known[number] = tenant, features.signature
        for key in _bands(tenant, features.signature):
            self._newest[key] = number

    def remove(self, number: int) -> None:
        for key in _bands(*self._known.pop(number)):
            if self._newest.get(key) == number:
                del self._newest[key]


class SemanticLengthCache:
    """Lengths of answers by prompt and service. Bounded by PROMPTS and SERVICES."""

    def __init__(self) -> None:
        self._index = MinHashIndex()
        self._prompts: OrderedDict[int, tuple[int, TextFeatures]] = OrderedDict()  # row: tenant and text
        self._services: OrderedDict[str, int] = OrderedDict()  # column
        self._free: list[int] = []  # rows
        self._tokens = np.full((64, 4), np.nan, np.float32)  # (rows, columns)
        self._scores = np.full((64, 4), np.nan, np.float32)
        self._likeness = _usual(4)
        self._weights: dict[tuple[int, bytes], tuple[NDArray[np.intp], NDArray[np.float64], float]] = {}
        self._learned, self._seen = 0, 0

    def __len__(self) -> int:
        return len(self._prompts)

    def find(self, tenant: int, features: TextFeatures) -> int | None:
        """Returns the row of a prompt that is (nearly) the same; None: the tenant has sent none of late."""
        return self._index.find(tenant, features)

    def score(self, service: str, row: int, repeated: bool = True) -> tuple[float, float] | None:
        """Returns the mean and the variance of a service's score for a prompt that is remembered.

        None: no service has answered it whose scores are known. `repeated` False leaves the service's own answers out.
        """
        column = self._services.get(service, -1)
        scores = self._scores[row]
        known = np.isfinite(scores)
        if column >= 0 and not repeated:
            known[column] = False
        if not known.any():
            return None
        key = column, known.tobytes()
        found = self._weights.get(key)
        if found is None:
            if len(self._weights) >= PROMPTS:
                self._weights.clear()
            found = self._weights[key] = self._weigh(column, np.flatnonzero(known))
        peers, weights, variance = found
        return float(weights @ scores[peers]), variance

    def remember(
        self, service: str, tenant: int, features: TextFeatures, output_tokens: int, score: float | None
    ) -> None:
        """Takes in an answer; `score` None: not known yet. Repeated answers of a service count by their mean.

        Nothing is remembered of a prompt without text.
        """
        if not features.grams.size:
            return
        row = self._index.find(tenant, features)
        if row is None:
            row = self._new_row(tenant, features)
        self._prompts.move_to_end(row)
        column = self._column(service)
        before = self._tokens[row, column]
        known = np.isfinite(before)
        self._tokens[row, column] = 0.5 * (before + output_tokens) if known else output_tokens
        if score is not None:
            old = self._scores[row, column]
            self._scores[row, column] = 0.5 * (old + score) if np.isfinite(old) else score
        self._seen += 1

    @property
    def due(self) -> bool:
        """Says whether enough answers came for correlations to be learned anew."""
        new = self._seen - self._learned
        return new >= min(_RELEARN_AT_MOST, max(_RELEARN_AT_LEAST, _RELEARN_SHARE * self._learned))

    def relearn(self, scales: Mapping[str, AnswerScale]) -> None:
        """Scores all answers by the services' present scales, and learns how alike services answer."""
        for service, column in self._services.items():
            scale = scales.get(service)
            tokens = self._tokens[:, column]
            known = np.isfinite(tokens)
            self._scores[:, column] = np.nan
            if scale is not None and scale.ready:
                self._scores[known, column] = scale.scores(tokens[known])
        known = np.isfinite(self._scores)
        scores, both = np.where(known, self._scores, 0.0), known.astype(np.float32)
        together = both.T @ both
        squares = (scores * scores).T @ both
        found = (scores.T @ scores) / np.sqrt(np.maximum(squares * squares.T, 1e-9))
        pairs = together * (1.0 - np.eye(len(together)))
        usual = (float((pairs * found).sum()) + _DOUBT * _USUAL) / (float(pairs.sum()) + _DOUBT)
        drawn = (together * found + _DOUBT * usual) / (together + _DOUBT)
        np.fill_diagonal(drawn, 1.0)
        # Correlations of pairs that rest on unlike prompts need not be those of any joint distribution.
        values, vectors = np.linalg.eigh(drawn)
        self._likeness = (vectors * np.maximum(values, 0.0)) @ vectors.T
        self._weights.clear()
        self._learned = self._seen

    def forget_tenant(self, tenant: int) -> None:
        """Forgets all of a tenant's prompts and their answers."""
        for row in [row for row, (owner, _) in self._prompts.items() if owner == tenant]:
            self._drop(row)

    def state(self) -> tuple[list[str], dict[str, NDArray[Any]]]:
        """Returns the services' names, and arrays: of each prompt, longest unanswered first, its tenant, signature and
        answers by service (tokens; NaN: none)."""
        rows = list(self._prompts)
        tenants = [tenant for tenant, _ in self._prompts.values()]
        signatures = [features.signature for _, features in self._prompts.values()]
        return list(self._services), {
            "tenants": np.array(tenants, np.int64),
            "signatures": np.array(signatures, np.uint32).reshape(-1, SIGNATURE),
            "tokens": self._tokens[np.ix_(rows, list(self._services.values()))],
        }

    def restore(
        self,
        services: list[str],
        state: Mapping[str, NDArray[Any]],
        scales: Mapping[str, AnswerScale],
    ) -> None:
        """Takes in what `state` gave, into an empty memory. Raises ValueError when it is no such thing."""
        tenants, signatures, tokens = state["tenants"], state["signatures"], state["tokens"]
        if tenants.dtype != np.int64 or signatures.dtype != np.uint32 or tokens.dtype != np.float32:
            raise ValueError("remembered prompts are of other types of numbers")
        if signatures.shape != (len(tenants), SIGNATURE) or tokens.shape != (len(tenants), len(services)):
            raise ValueError("remembered prompts, their signatures and their answers differ in number")
        if len(tenants) > PROMPTS or len(services) > SERVICES or not (np.isnan(tokens) | (tokens >= 1.0)).all():
            raise ValueError("remembered prompts are too many, or an answer has less than a token")
        columns = [self._column(service) for service in services]
        for tenant, signature, answers in zip(tenants.tolist(), signatures, tokens, strict=True):
            row = self._new_row(tenant, TextFeatures(signature.copy(), signature.copy()))
            self._tokens[row, columns] = answers
        self._seen = int(np.isfinite(tokens).sum())
        self.relearn(scales)

    def _weigh(self, column: int, known: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.float64], float]:
        """Returns the services that count, their weights, and the variance that is left: kriging with a nugget."""
        like = np.full(known.size, _USUAL) if column < 0 else self._likeness[column, known].copy()
        like[known == column] = _REPEAT
        most = np.argsort(-np.abs(like), kind="stable")[:PEERS]
        peers, like = known[most], like[most]
        among = self._likeness[np.ix_(peers, peers)] + _NUGGET * np.eye(peers.size)
        weights = np.linalg.solve(among, like)
        return peers, weights, max(_NUGGET, 1.0 - float(weights @ like))

    def _new_row(self, tenant: int, features: TextFeatures) -> int:
        if len(self._prompts) >= PROMPTS:
            self._drop(next(iter(self._prompts)))
        row = self._free.pop() if self._free else len(self._prompts)
        if row >= len(self._tokens):
            self._grow(min(PROMPTS, 2 * len(self._tokens)), self._tokens.shape[1])
        self._prompts[row] = tenant, TextFeatures(features.grams[:1], features.signature)
        self._index.add(row, tenant, features)
        return row

    def _drop(self, row: int) -> None:
        del self._prompts[row]
        self._index.remove(row)
        self._tokens[row] = self._scores[row] = np.nan
        self._free.append(row)

    def _column(self, service: str) -> int:
        column = self._services.get(service)
        if column is None:
            if len(self._services) < SERVICES:
                column = len(self._services)
            else:
                column = self._services.popitem(last=False)[1]
                self._tokens[:, column] = self._scores[:, column] = np.nan
                self._likeness[column] = self._likeness[:, column] = _USUAL
                self._likeness[column, column] = 1.0
                self._weights.clear()
            if column >= self._tokens.shape[1]:
                self._grow(len(self._tokens), 2 * self._tokens.shape[1])
            self._services[service] = column
        self._services.move_to_end(service)
        return column

    def _grow(self, rows: int, columns: int) -> None:
        more = (0, rows - self._tokens.shape[0]), (0, columns - self._tokens.shape[1])
        self._tokens = np.pad(self._tokens, more, constant_values=np.nan)
        self._scores = np.pad(self._scores, more, constant_values=np.nan)
        likeness = _usual(columns)
        likeness[: len(self._likeness), : len(self._likeness)] = self._likeness
        self._likeness = likeness
        self._weights.clear()


def _usual(services: int) -> NDArray[np.float64]:
    return np.where(np.eye(services, dtype=bool), 1.0, _USUAL)


def _bands(tenant: int, signature: Hashes) -> list[tuple[int, int, bytes]]:
    raw = signature.tobytes()
    size = len(raw) // _BANDS
    return [(tenant, band, raw[band * size : (band + 1) * size]) for band in range(_BANDS)]
