"""Counts a prompt's tokens: from its bytes at once, or by the model's own tokenizer within milliseconds.

The estimate is a straight line, tokens = ratio x bytes + overhead x messages, learned from the engines' usage for each
service and endpoint; the overhead is what a chat template adds. With it comes how far off it has been.

A tokenizer needs 2.5 ms for a thousand tokens, 25 times what all else in the gateway costs a request. So it is asked
only where it can change the class: when a border lies within the estimate's error, and then off the event loop.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from core.ports import AdapterError, PermanentError, TextTokenizer

log = logging.getLogger(__name__)

START_TOKENS_PER_BYTE = 0.25
START_DEVIATION = 0.06  # tokens a byte: from English prose (about 0.22) to code and other scripts (0.3 and more)
START_OVERHEAD = 4.0  # tokens a chat message, for its role's marks
_MAX_OVERHEAD = 256.0
_WEIGHT = 0.05  # of a new observation in the averages; the first few weigh more
_MIN_BYTES = 16  # shorter texts count as this long: a word says little about the ratio
_FULL_BYTES = 512  # texts from this length on say how far off the ratio is; shorter ones in proportion
_SPEED_WEIGHT = 0.1
_RECOVERY = 1.01  # of the speed believed, with each refusal: a bad minute is not held against it for ever
_SPREAD = 1.65  # deviations: nine in ten true counts lie within


class TokenRange(NamedTuple):
    """An estimate and where nine in ten true counts lie, ends included."""

    tokens: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class TokenFitState:
    """A fit as it can be kept: see `PromptEstimator`."""

    ratio: float
    overhead: float
    mean_x: float
    mean_y: float
    variance_x: float
    covariance: float
    variance_y: float
    count: int


class _TokenFit:
    """Exponentially weighted regression of tokens a byte on messages a byte."""

    __slots__ = ("count", "covariance", "mean_x", "mean_y", "overhead", "ratio", "variance_x", "variance_y")

    def __init__(self, overhead: float) -> None:
        self.ratio, self.overhead = START_TOKENS_PER_BYTE, overhead
        self.mean_x = self.mean_y = self.variance_x = self.covariance = 0.0
        self.variance_y = START_DEVIATION**2  # of what the fit leaves
        self.count = 0

    def observe(self, text_bytes: int, messages: int, prompt_tokens: int, chat: bool) -> None:
        length = max(_MIN_BYTES, text_bytes)
        x, y = messages / length, prompt_tokens / length
        self.count += 1
        weight = max(_WEIGHT, 1.0 / (self.count + 1))
        miss = y - self.ratio - self.overhead * x
        self.variance_y += weight * min(1.0, text_bytes / _FULL_BYTES) * (miss * miss - self.variance_y)
        if self.count == 1:  # begin on the fit that was assumed
            self.mean_x, self.mean_y = x, self.ratio + self.overhead * x
        dx, dy = x - self.mean_x, y - self.mean_y
        self.mean_x += weight * dx
        self.mean_y += weight * dy
        self.variance_x = (1.0 - weight) * (self.variance_x + weight * dx * dx)
        self.covariance = (1.0 - weight) * (self.covariance + weight * dx * dy)
        if chat and self.variance_x > 1e-12:
            # A little of the assumption stays in, so that texts of like length do not make the slope jump about.
            prior = 1e-7
            slope = (self.covariance + prior * self.overhead) / (self.variance_x + prior)
            self.overhead = min(_MAX_OVERHEAD, max(0.0, slope))
        self.ratio = max(0.0, self.mean_y - self.overhead * self.mean_x)


class PromptEstimator:
    """Tokens of a text from its UTF-8 bytes, for each service and endpoint."""

    def __init__(self) -> None:
        self._fits: dict[tuple[str, bool], _TokenFit] = {}

    def estimate(self, service: str, chat: bool, text_bytes: int, messages: int) -> TokenRange:
        fit = self._fit(service, chat)
        middle = text_bytes * fit.ratio + messages * fit.overhead
        error = _SPREAD * text_bytes * math.sqrt(fit.variance_y)
        tokens = max(1, round(middle))
        return TokenRange(tokens, max(1, min(tokens, int(middle - error))), max(tokens, math.ceil(middle + error)))

    def tokens(self, service: str, chat: bool, text_bytes: int, messages: int) -> int:
        """Returns the estimate alone."""
        fit = self._fit(service, chat)
        return max(1, round(text_bytes * fit.ratio + messages * fit.overhead))

    def overhead(self, service: str, chat: bool) -> float:
        """Returns the tokens that a message adds to its text's own."""
        fit = self._fits.get((service, chat))
        return fit.overhead if fit is not None else START_OVERHEAD if chat else 0.0

    def observe(self, service: str, chat: bool, text_bytes: int, messages: int, prompt_tokens: int) -> None:
        self._fit(service, chat).observe(text_bytes, messages, prompt_tokens, chat)

    def _fit(self, service: str, chat: bool) -> _TokenFit:
        fit = self._fits.get((service, chat))
        if fit is None:
            fit = self._fits[service, chat] = _TokenFit(START_OVERHEAD if chat else 0.0)
        return fit

    def fits(self) -> dict[tuple[str, bool], TokenFitState]:
        """Returns all that was learned, by service and whether it is of chats."""
        names = [field.name for field in fields(TokenFitState)]
        return {key: TokenFitState(*(getattr(fit, name) for name in names)) for key, fit in self._fits.items()}

    def restore(self, service: str, chat: bool, state: TokenFitState) -> None:
        """Takes in what `fits` gave. Raises ValueError for what no fit can be."""
        if state.ratio < 0.0 or not 0.0 <= state.overhead <= _MAX_OVERHEAD or state.variance_y < 0.0 or state.count < 0:
            raise ValueError(f"no fit of tokens by bytes: {state}")
        fit = self._fits[service, chat] = _TokenFit(state.overhead)
        for name, value in asdict(state).items():
            setattr(fit, name, value)


class HuggingFaceTokenizer:
    """A `tokenizer.json` read by Hugging Face's tokenizers (optional). Fills the port TextTokenizer."""

    def __init__(self, path: Path) -> None:
        """Reads the file: a second for a large vocabulary, with Python's lock held. See `model_tokenizers`.

        Raises PermanentError when the package or the file is missing, or the file is no tokenizer.
        """
        try:
            package = importlib.import_module("tokenizers")
        except ImportError as error:
            raise PermanentError(f"{path} needs the package 'tokenizers', which is not installed") from error
        try:
            self._tokenizer = package.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises plain Exception
            raise PermanentError(f"{path} is no tokenizer: {error}") from error

    def count(self, texts: Sequence[str]) -> int:
        # Of the ways to encode, only those for batches let go of Python's lock; the fast one skips offsets.
        try:
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # plain Exception again, as for a text that is no Unicode
            raise PermanentError(f"a text cannot be tokenized: {error}") from error
        return sum(len(encoding) for encoding in found)


class _Job(NamedTuple):
    tokenizer: TextTokenizer
    texts: Sequence[str]
    text_bytes: int
    deadline_s: float  # monotonic
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[int | None]


class TokenizerThread:
    """Counts tokens in one thread, for callers who cannot wait long. Nothing here blocks the event loop.

    A text is refused at once when the queue is full, or when by the speed seen so far it would take longer than the
    deadline; one whose deadline passed in the queue is dropped. Then the answer is None, and the estimate stands.
    """

    def __init__(self, tokenizers: Mapping[str, TextTokenizer], deadline_s: float = 0.005, max_queue: int = 32) -> None:
        self.deadline_s = deadline_s
        self.answered = self.refused = self.late = self.failed = 0
        self._tokenizers: dict[str, TextTokenizer] = {}
        self._max_queue = max_queue
        self._bytes_per_s = 1.0e6  # until seen
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        for service, tokenizer in tokenizers.items():
            self.serve(service, tokenizer)

    def serve(self, service: str, tokenizer: TextTokenizer | None) -> None:
        """From now on a service's texts are counted by this one; None: they are not. From any thread."""
        if tokenizer is None:
            self._tokenizers.pop(service, None)
            return
        self._tokenizers[service] = tokenizer
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._work, name="tokenizer", daemon=True)
            self._thread.start()

    def serves(self, service: str) -> bool:
        return self._thread is not None and service in self._tokenizers

    @property
    def waiting(self) -> int:
        """Texts in the queue, about."""
        return self._jobs.qsize()

    async def count(self, service: str, texts: Sequence[str], text_bytes: int) -> int | None:
        """Returns the tokens of the texts, without a template's; None when they cannot be had within the deadline."""
        tokenizer = self._tokenizers.get(service)
        if tokenizer is None or self._thread is None:
            return None
        if self.waiting >= self._max_queue or text_bytes > self._bytes_per_s * self.deadline_s:
            self.refused += 1
            self._bytes_per_s *= _RECOVERY
            return None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int | None] = loop.create_future()
        until_s = time.monotonic() + self.deadline_s
        self._jobs.put(_Job(tokenizer, texts, text_bytes, until_s, loop, answer))
        timer = loop.call_later(self.deadline_s, _settle, answer, None)
        try:
            found = await answer
        finally:
            timer.cancel()
        if found is None:
            self.late += 1
        else:
            self.answered += 1
        return found

    def close(self) -> None:
        """Ends the thread after what it is counting now."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout=1.0)
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            began_s = time.monotonic()
            if began_s >= job.deadline_s or job.answer.done():  # timers may fire a little early
                continue
            tokens = self._counted(job)
            if tokens is not None:
                speed = job.text_bytes / max(time.monotonic() - began_s, 1e-6)
                self._bytes_per_s += _SPEED_WEIGHT * (speed - self._bytes_per_s)
            try:
                job.loop.call_soon_threadsafe(_settle, job.answer, tokens)
            except RuntimeError:  # the loop has closed meanwhile; nobody waits
                continue

    def _counted(self, job: _Job) -> int | None:
        try:
            return job.tokenizer.count(job.texts)
        except AdapterError:
            self.failed += 1
        except Exception:
            self.failed += 1
            log.exception("a tokenizer failed in a way that it should not")
        return None


def _settle(answer: asyncio.Future[int | None], tokens: int | None) -> None:
    if not answer.done():
        answer.set_result(tokens)
