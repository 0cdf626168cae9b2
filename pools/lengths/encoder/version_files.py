"""The files of one version of a trained encoder: a folder with a manifest, a model and a tokenizer, and nothing else.

No file is a pickle: the model is ONNX, which holds numbers and operators and cannot run code; the rest is JSON. What is
loaded is what was hashed: a file's bytes are read once, compared with the manifest, and handed on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import msgspec

MANIFEST, MODEL, TOKENIZER = "predictor.json", "model.onnx", "tokenizer.json"
FILES = (MODEL, TOKENIZER)
FORMAT, FORMAT_VERSION = "greenserve-length-encoder", 1
_MOST_MANIFEST_BYTES = 64 * 1024
_MOST_BYTES = 4 * 2**30  # of a model; ONNX itself ends at 2 GiB
_MOST_TOKENS, _MOST_CHUNKS, _MOST_CLASSES = 8192, 64, 64
_ONNX_BEGINS = b"\x08"  # the field `ir_version`, which writers put first; a pickle begins with 0x80, a zip with "PK"


class UnusableVersion(ValueError):
    """A version that cannot be used: what is wrong with which file, in words an operator understands."""


class TrainingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Says what a version was trained on. `rows` are those of the file, `trained_on` those that gradients were of."""

    rows: int
    trained_on: int
    data_sha256: str
    text_column: str
    length_column: str
    seed: int
    epochs: int  # until the best one, which was kept


class EncoderScores(msgspec.Struct, frozen=True, kw_only=True):
    """Says how good a version is on rows that training never saw, as it serves: by ONNX Runtime, on one core."""

    tested_on: int
    accuracy: float  # share of right classes
    base_accuracy: float  # of whom always names the class that was most frequent in training
    recall_longest: float | None  # share of the longest class's answers that were predicted so; None: there were none
    mae_tokens: float  # of the median that is predicted
    p50_ms: float  # a prompt, alone
    p99_ms: float


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what `predictor.json` says of a version.

    `borders` are (k - 1,) tokens between the k classes and `tail_tokens` the median beyond the last (LengthOdds). A
    prompt is read as at most `max_chunks` chunks of `max_tokens` tokens; `width` is that of its embedding.
    """

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    preset: str
    encoder: str  # its kind, such as bert or xlm-roberta
    borders: tuple[int, ...]
    tail_tokens: float
    max_tokens: int
    max_chunks: int
    width: int
    precision: str  # int8 or float32
    sha256: Mapping[str, str]  # by file
    training: TrainingRecord
    scores: EncoderScores
    made_at: str  # ISO 8601, UTC
    greenserve: str  # the version that made it

    @property
    def classes(self) -> int:
        """Returns k, the number of classes."""
        return len(self.borders) + 1


class _Head(msgspec.Struct, frozen=True):
    format: str = ""
    format_version: int = 0


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest of a folder that holds all else. What it says of the files' hashes is theirs."""
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def hashes(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file of a version, hexadecimal."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}


def read_manifest(folder: Path) -> Manifest:
    """Reads what a version says of itself, without its files. Raises UnusableVersion."""
    path = folder / MANIFEST
    raw = _read(path, _MOST_MANIFEST_BYTES)
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableVersion(f"{path} is no manifest of a predictor: {error}") from None
    if head.format != FORMAT:
        raise UnusableVersion(f"{path} is not ours: its format is {head.format!r}, not {FORMAT!r}")
    if head.format_version != FORMAT_VERSION:
        newer = head.format_version > FORMAT_VERSION
        remedy = "update GreenServe" if newer else "train it again"
        raise UnusableVersion(f"{path} has version {head.format_version} of the format, not {FORMAT_VERSION}: {remedy}")
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except msgspec.DecodeError as error:
        raise UnusableVersion(f"{path} lacks what a manifest says: {error}") from None
    if fault := _fault(manifest):
        raise UnusableVersion(f"{path}: {fault}")
    return manifest


def read_files(folder: Path, manifest: Manifest) -> dict[str, bytes]:
    """Reads the files of a version, and compares them with its manifest. Raises UnusableVersion."""
    found = {name: _read(folder / name, _MOST_BYTES) for name in FILES}
    for name, raw in found.items():
        if hashlib.sha256(raw).hexdigest() != manifest.sha256[name]:
            raise UnusableVersion(f"{folder / name} is damaged or was changed: its SHA-256 is not what {MANIFEST} says")
    if not found[MODEL].startswith(_ONNX_BEGINS):
        raise UnusableVersion(f"{folder / MODEL} is no ONNX file; pickles and archives of them are never opened")
    return found


def _fault(manifest: Manifest) -> str:
    """Says what of a manifest cannot be; else empty."""
    if set(manifest.sha256) != set(FILES):
        return f"sha256 names {sorted(manifest.sha256)}, not {sorted(FILES)}"
    if not 2 <= manifest.classes <= _MOST_CLASSES:
        return f"borders make {manifest.classes} classes; there are 2 to {_MOST_CLASSES}"
    if any(low >= high for low, high in pairwise((0, *manifest.borders))):
        return f"borders ascend from 1 token on, unlike {list(manifest.borders)}"
    if not manifest.borders[-1] < manifest.tail_tokens < float("inf"):
        return f"tail_tokens lies above the last border, {manifest.borders[-1]}, unlike {manifest.tail_tokens}"
    if not 4 <= manifest.max_tokens <= _MOST_TOKENS:
        return f"max_tokens is 4 to {_MOST_TOKENS}, not {manifest.max_tokens}"
    if not 1 <= manifest.max_chunks <= _MOST_CHUNKS:
        return f"max_chunks is 1 to {_MOST_CHUNKS}, not {manifest.max_chunks}"
    return ""


def _read(path: Path, most_bytes: int) -> bytes:
    if not path.is_file():
        raise UnusableVersion(f"{path} is missing: a version has {MANIFEST}, {MODEL} and {TOKENIZER}")
    try:
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
    except OSError as error:
        raise UnusableVersion(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > most_bytes:
        raise UnusableVersion(f"{path} is larger than {most_bytes:,} bytes, and so is not ours")
    return raw
