"""Versions of an encoder whose files are well-formed and whose model is no model: for what needs no ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pools.lengths.encoder.version_files import (
    MODEL,
    TOKENIZER,
    EncoderScores,
    Manifest,
    TrainingRecord,
    hashes,
    write_manifest,
)
from pools.lengths.encoder.versions import Versions

TRAINING = TrainingRecord(
    rows=640,
    trained_on=448,
    data_sha256="0" * 64,
    text_column="prompt",
    length_column="tokens",
    seed=0,
    epochs=4,
)
SCORES = EncoderScores(
    tested_on=96, accuracy=0.4, base_accuracy=0.2, recall_longest=0.5, mae_tokens=100.0, p50_ms=1.0, p99_ms=2.0
)


def manifest(folder: Path, **changes: Any) -> Manifest:
    made = Manifest(
        preset="bert",
        encoder="bert",
        borders=(20, 80, 200, 400),
        tail_tokens=600.0,
        max_tokens=128,
        max_chunks=1,
        width=16,
        precision="int8",
        sha256=hashes(folder),
        training=TRAINING,
        scores=SCORES,
        made_at="2026-11-28T12:00:00Z",
        greenserve="0.1.0",
    )
    return msgspec.structs.replace(made, **changes)


def fill(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL).write_bytes(b"\x08\x08" + b"weights" * 100)
    (folder / TOKENIZER).write_bytes(b"{}")
    write_manifest(folder, manifest(folder, **changes))
    return folder


def publish(versions: Versions, name: str = "chat", **changes: Any) -> int:
    with versions.draft(name) as draft:
        return versions.publish(name, fill(draft, **changes))
