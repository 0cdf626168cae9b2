"""A version of an encoder is loaded as it was written, and refused with the reason where it is not ours."""

from __future__ import annotations

import json
import pickle

import pytest

from pools.lengths.encoder.version_files import (
    MANIFEST,
    MODEL,
    TOKENIZER,
    UnusableVersion,
    hashes,
    read_files,
    read_manifest,
)
from tests.fakes.encoder_versions import fill, manifest


@pytest.fixture
def folder(tmp_path):
    return fill(tmp_path / "0001")


def rewrite(folder, **changes):
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(folder):
    with pytest.raises(UnusableVersion) as refused:
        read_files(folder, read_manifest(folder))
    return str(refused.value)


def test_version_is_read_as_it_was_written(folder):
    found = read_manifest(folder)
    assert found == manifest(folder)
    assert found.classes == 5
    assert read_files(folder, found) == {name: (folder / name).read_bytes() for name in (MODEL, TOKENIZER)}


def test_changed_byte_is_refused(folder):
    raw = bytearray((folder / MODEL).read_bytes())
    raw[100] ^= 1
    (folder / MODEL).write_bytes(raw)
    assert refusal(folder).endswith(f"{MODEL} is damaged or was changed: its SHA-256 is not what {MANIFEST} says")


def test_truncated_files_are_refused(folder):
    for name in (TOKENIZER, MODEL, MANIFEST):
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw[: len(raw) // 2])
        assert name in refusal(folder)


def test_missing_file_is_named(folder):
    (folder / TOKENIZER).unlink()
    assert f"{TOKENIZER} is missing" in refusal(folder)


def test_another_format_is_refused(folder):
    rewrite(folder, format="keras")
    assert "is not ours: its format is 'keras'" in refusal(folder)


def test_format_of_a_newer_greenserve_asks_for_an_update_and_an_older_one_for_training(folder):
    rewrite(folder, format_version=2, of_the_future=[])
    assert "has version 2 of the format, not 1: update GreenServe" in refusal(folder)
    rewrite(folder, format_version=0)
    assert "train it again" in refusal(folder)


def test_pickle_is_never_opened_even_where_the_manifest_vouches_for_it(folder):
    for raw in (pickle.dumps({"weights": [1.0]}), b"PK\x03\x04archive of torch.save"):
        (folder / MODEL).write_bytes(raw)
        rewrite(folder, sha256=hashes(folder))
        assert "is no ONNX file; pickles" in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sha256": {"../model.onnx": "0"}}, "sha256 names ['../model.onnx']"),
        ({"borders": []}, "borders make 1 classes"),
        ({"borders": [20, 20, 30, 40]}, "borders ascend"),
        ({"tail_tokens": 400}, "tail_tokens lies above the last border, 400"),
        ({"max_tokens": 10**6}, "max_tokens is 4 to 8192"),
        ({"max_chunks": 0}, "max_chunks is 1 to 64"),
        ({"width": "wide"}, "Expected `int`, got `str` - at `$.width`"),
        ({"surprise": 1}, "unknown field `surprise`"),
    ],
)
def test_manifest_that_cannot_be_is_refused_with_its_field(folder, changes, reason):
    rewrite(folder, **changes)
    assert reason in refusal(folder)


def test_file_that_is_no_json_is_refused(folder):
    (folder / MANIFEST).write_bytes(pickle.dumps({}))
    assert "is no manifest of a predictor" in refusal(folder)
