"""What an agent asks of an engine: is it up, does it answer, how much is left; and to sleep and wake."""

from __future__ import annotations

import contextlib

import msgspec

from core.ports import AdapterError, EngineReading, PermanentError, RetryableError

from ..http_client import HttpClient
from .engine_access import OPEN, EngineAccess
from .vllm_metrics import parse_reading

_LOOK_S = 2.0
_DESCRIBE_S = 60.0  # it is made when it is first asked for: seconds of processor time, on a busy machine many
_ANSWER_S = 120.0  # a first request may compile
_SLEEP_S = 120.0  # weights go to the machine's memory
_PROMPT_TOKENS = (64, 512)  # of warm-up requests
_COMPLETIONS, _EMBEDDINGS = "/v1/completions", "/v1/embeddings"
# Where engines serve requests; vLLM has the others only for models that can do it, and says so at `/openapi.json`.
SERVING_PATHS = (_COMPLETIONS, "/v1/chat/completions", "/v1/responses", _EMBEDDINGS, "/rerank", "/score")


class _Interface(msgspec.Struct):
    paths: dict[str, msgspec.Raw]


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class Probe:
    """Asks one engine, from one thread. Every method raises AdapterError."""

    def __init__(self, url: str, model: str, max_model_len: int, access: EngineAccess = OPEN) -> None:
        self._url = url
        self._access = access
        self._model = model
        self._max_model_len = max_model_len

    def healthy(self) -> bool:
        with self._client(_LOOK_S) as client:
            try:
                client.call("GET", "/health")
            except AdapterError:
                return False
        return True

    def version(self) -> str:
        with self._client(_LOOK_S) as client:
            return str(msgspec.json.decode(client.call("GET", "/version")).get("version", ""))

    def paths(self) -> tuple[str, ...] | None:
        """Returns those of `SERVING_PATHS` that it has; None: it does not say, as with `--disable-fastapi-docs`."""
        with self._client(_DESCRIBE_S) as client:
            try:
                found = msgspec.json.decode(client.call("GET", "/openapi.json"), type=_Interface).paths
            except (PermanentError, msgspec.DecodeError):
                return None
        return tuple(path for path in SERVING_PATHS if path in found)

    def adapters(self) -> tuple[str, ...]:
        """Returns the names of LoRA adapters that are loaded: vLLM lists them as models with a parent."""
        with self._client(_LOOK_S) as client:
            try:
                found = msgspec.json.decode(client.call("GET", "/v1/models"), type=_Models).data
            except msgspec.DecodeError as error:
                raise RetryableError(f"the engine's list of models cannot be read: {error}") from error
        return tuple(sorted(model.id for model in found if model.parent and model.id != self._model))

    def answer(self, paths: tuple[str, ...] | None = None) -> None:
        """Serves a real request, as small as can be: an engine that is up and cannot do that is not ready.

        One that neither generates nor embeds is taken at its `/health`.
        """
        if generates(paths):
            self._complete("Are you there?", 1)
        elif paths is not None and _EMBEDDINGS in paths:
            self._embed("Are you there?")

    def warm_up(self, paths: tuple[str, ...] | None = None) -> None:
        """Prompts of a few lengths: what is compiled or allocated at first use is done before clients come."""
        for tokens in _PROMPT_TOKENS:
            if tokens + 8 < self._max_model_len and generates(paths):
                self._complete([5 + i % 50 for i in range(tokens)], 8)  # low token ids are in any vocabulary

    def left(self) -> int:
        """Returns how many requests run or wait."""
        reading = self.reading()
        if reading.running is None or reading.waiting is None:
            raise RetryableError("the engine does not say how many requests it has")
        return reading.running + reading.waiting

    def reading(self) -> EngineReading:
        with self._client(_LOOK_S) as client:
            return parse_reading(client.call("GET", "/metrics"))

    def asleep(self) -> bool:
        with self._client(_LOOK_S) as client:
            return bool(msgspec.json.decode(client.call("GET", "/is_sleeping"))["is_sleeping"])

    def sleep(self, level: int) -> None:
        with self._client(_SLEEP_S) as client:
            client.call("POST", f"/sleep?level={level}&mode=abort")

    def wake(self) -> None:
        with self._client(_SLEEP_S) as client:
            client.call("POST", "/wake_up")

    def _complete(self, prompt: str | list[int], tokens: int) -> None:
        body = {"model": self._model, "prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
        with self._client(_ANSWER_S) as client:
            answer = msgspec.json.decode(client.call("POST", "/v1/completions", msgspec.json.encode(body)))
        if answer.get("usage", {}).get("completion_tokens") != tokens:
            raise RetryableError(f"the engine was asked for {tokens} tokens and answered {str(answer)[:200]}")

    def _embed(self, text: str) -> None:
        body = msgspec.json.encode({"model": self._model, "input": text})
        with self._client(_ANSWER_S) as client:
            answer = msgspec.json.decode(client.call("POST", _EMBEDDINGS, body))
        if not answer.get("data"):
            raise RetryableError(f"the engine was asked for an embedding and answered {str(answer)[:200]}")

    def _client(self, timeout_s: float) -> contextlib.closing[HttpClient]:
        return contextlib.closing(HttpClient(self._url, timeout_s, self._access.headers, self._access.trust))


def generates(paths: tuple[str, ...] | None) -> bool:
    """Says whether an engine with these paths completes texts; where they are not known, it is taken to."""
    return paths is None or _COMPLETIONS in paths
