"""The trained encoder as gateways ask it: ONNX Runtime on one core, without PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from core.length_odds import LengthOdds
from core.ports import PermanentError

from . import needs
from .length_classes import Classes
from .prompt_tokens import PromptTokens
from .version_files import MODEL, TOKENIZER, UnusableVersion, read_files, read_manifest

NAME = "encoder"  # in records and on pages
IDS, MASK, EXCEEDS, EMBEDDING = "ids", "mask", "exceeds", "embedding"  # of the model's inputs and outputs
_BATCH = 16

Floats = NDArray[np.float32]


class Session(Protocol):
    """Runs a model, as an onnxruntime.InferenceSession does."""

    def run(self, outputs: list[str], inputs: dict[str, NDArray[np.int64]]) -> list[Floats]: ...


class EncoderPredictor:
    """A LengthProxyModel of one version. Blocks for some milliseconds a prompt, on `threads` threads.

    `services` None: it serves all.
    """

    def __init__(
        self, model: Session, tokens: PromptTokens, classes: Classes, services: Collection[str] | None = None
    ) -> None:
        self._model, self._tokens, self._classes = model, tokens, classes
        self._services = services

    @classmethod
    def load(cls, folder: Path, services: Collection[str] | None = None, threads: int = 1) -> EncoderPredictor:
        """Loads a version.

        Raises UnusableVersion where it is damaged or not ours, LearnedMissing where ONNX Runtime is not installed.
        """
        needs.require(needs.TO_SERVE, "to serve an encoder")
        manifest = read_manifest(folder)
        files = read_files(folder, manifest)
        model = session(files[MODEL], threads)
        tokens = PromptTokens(files[TOKENIZER], manifest.max_tokens, manifest.max_chunks)
        _check_shapes(model, folder / MODEL, tokens, manifest.classes - 1, manifest.width)
        return cls(model, tokens, Classes(manifest.borders, manifest.tail_tokens), services)

    def serves(self, service: str) -> bool:
        return self._services is None or service in self._services

    def predict(self, services: Sequence[str], prompts: Sequence[str]) -> Sequence[LengthOdds | None]:
        """Returns the odds of each prompt's classes of lengths; None where it does not serve the prompt's service.

        Raises PermanentError.
        """
        found: list[LengthOdds | None] = [None] * len(prompts)
        rows = [row for row, service in enumerate(services) if self.serves(service)]
        for row, exceeds in zip(rows, self._run(EXCEEDS, [prompts[row] for row in rows]), strict=True):
            found[row] = self._odds(exceeds)
        return found

    def embed(self, prompts: Sequence[str]) -> Floats:
        """Returns (n, d) embeddings of length 1, whose products are cosines. Raises PermanentError."""
        found = self._run(EMBEDDING, prompts)
        norms = np.linalg.norm(found, axis=1, keepdims=True)
        return np.asarray(found / np.maximum(norms, 1e-12), dtype=np.float32)

    def _run(self, output: str, prompts: Sequence[str]) -> Floats:
        rows: list[Floats] = [np.empty(0, dtype=np.float32)] * len(prompts)
        for batch in self._tokens.batches(self._tokens.chunks(prompts), _BATCH):
            try:
                (found,) = self._model.run([output], {IDS: batch.ids, MASK: batch.mask})
            except Exception as error:  # ONNX Runtime's own are made at run time
                raise PermanentError(f"the encoder fails: {str(error).splitlines()[0]}") from None
            for row, one in zip(batch.rows, found, strict=True):
                rows[row] = one
        return np.stack(rows) if rows else np.empty((0, 0), dtype=np.float32)

    def _odds(self, exceeds: Floats) -> LengthOdds:
        """Makes probabilities of P(y > j), which the head makes descend but for rounding."""
        survival = np.minimum.accumulate(np.concatenate(([1.0], exceeds.astype(np.float64), [0.0])))
        shares = tuple((-np.diff(survival)).tolist())
        try:
            return LengthOdds(NAME, self._classes.borders, shares, self._classes.tail_tokens)
        except ValueError as error:  # it says what is no number
            raise PermanentError(f"the encoder fails: {error}") from None


def session(raw: bytes, threads: int = 1) -> Session:
    """Opens a model from its bytes, so that it can name no other file. Raises UnusableVersion."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # what is wrong is raised
    try:
        found = onnxruntime.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own are made at run time
        raise UnusableVersion(f"{MODEL} cannot be loaded: {str(error).splitlines()[0]}") from None
    return cast(Session, found)


def _check_shapes(model: Session, path: Path, tokens: PromptTokens, borders: int, width: int) -> None:
    """Asks for an empty prompt: what a model says of its own shapes may be names."""
    (batch,) = tokens.batches(tokens.chunks([""]), 1)
    try:
        exceeds, embedding = model.run([EXCEEDS, EMBEDDING], {IDS: batch.ids, MASK: batch.mask})
    except Exception as error:  # ONNX Runtime's own are made at run time
        raise UnusableVersion(f"{path} is no model of ours: {str(error).splitlines()[0]}") from None
    if (exceeds.shape, embedding.shape) != ((1, borders), (1, width)):
        raise UnusableVersion(
            f"{path} does not fit its manifest: it says {exceeds.shape} and {embedding.shape} of a prompt, not "
            f"{borders} borders and {width} numbers of its embedding"
        )
