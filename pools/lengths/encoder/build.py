"""Makes a version of an encoder from data: split, trained, exported, scored, written. Needs the whole extra."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from pools import release

from . import length_classes
from .export import write_onnx
from .length_classes import Classes
from .predictor import EncoderPredictor, session
from .prompt_tokens import PromptTokens
from .scoring import score
from .training import Progress, Trained, TrainingOptions, train
from .training_data import LengthData, Parts, split
from .version_files import MODEL, TOKENIZER, Manifest, TrainingRecord, hashes, write_manifest

_SAMPLES = 3  # batches on which the exported model is compared


def build(
    data: LengthData,
    columns: tuple[str, str],
    options: TrainingOptions,
    precision: str,
    folder: Path,
    progress: Progress,
    tell: Callable[[str], None],
) -> Manifest:
    """Trains on data and writes a version into an empty folder; `columns` are those of prompts and lengths in the file.

    Raises ValueError where data or encoder cannot be used, ExportFailed, and KeyboardInterrupt before the first epoch.
    """
    parts = split(data, options.seed)
    classes = length_classes.classes(parts.train.tokens)
    tell(
        f"{len(parts.train.prompts)} rows train, {len(parts.stop.prompts)} stop, {len(parts.test.prompts)} test; "
        f"classes end at {', '.join(map(str, classes.borders))} tokens"
    )
    trained = train(parts, classes, options, progress)
    if trained.interrupted:
        tell(f"Interrupted: the best so far is kept, that of epoch {trained.epochs}.")
    return _write(folder, parts, classes, trained, options, precision, columns, data)


def _write(
    folder: Path,
    parts: Parts,
    classes: Classes,
    trained: Trained,
    options: TrainingOptions,
    precision: str,
    columns: tuple[str, str],
    data: LengthData,
) -> Manifest:
    tokens = PromptTokens(trained.tokenizer, trained.max_tokens, trained.max_chunks)
    samples = list(islice(tokens.batches(tokens.chunks(parts.test.prompts[:64]), 16), _SAMPLES))
    write_onnx(trained.network, samples, folder / MODEL, precision)
    (folder / TOKENIZER).write_bytes(trained.tokenizer)
    serving = EncoderPredictor(session((folder / MODEL).read_bytes()), tokens, classes)
    manifest = Manifest(
        preset=options.preset,
        encoder=trained.kind,
        borders=classes.borders,
        tail_tokens=classes.tail_tokens,
        max_tokens=trained.max_tokens,
        max_chunks=trained.max_chunks,
        width=trained.network.width,
        precision=precision,
        sha256=hashes(folder),
        training=TrainingRecord(
            rows=len(data.prompts),
            trained_on=len(parts.train.prompts),
            data_sha256=data.sha256,
            text_column=columns[0],
            length_column=columns[1],
            seed=options.seed,
            epochs=trained.epochs,
        ),
        scores=score(serving, classes, parts.train.tokens, parts.test),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        greenserve=release.version(),
    )
    write_manifest(folder, manifest)
    return manifest
