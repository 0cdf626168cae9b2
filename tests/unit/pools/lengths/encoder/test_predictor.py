"""What a model says of borders becomes the odds of classes; what is in use is loaded, and again when that changes."""

from __future__ import annotations

import numpy as np
import pytest

from core.ports import PermanentError
from pools.lengths.encoder import in_use, needs
from pools.lengths.encoder.in_use import EncoderInUse
from pools.lengths.encoder.length_classes import Classes
from pools.lengths.encoder.predictor import EMBEDDING, EXCEEDS, MASK, EncoderPredictor
from pools.lengths.encoder.prompt_tokens import PromptTokens, new_tokenizer
from pools.lengths.encoder.versions import Versions
from tests.fakes.encoder_versions import publish

CLASSES = Classes((10, 100), 200.0)


class FakeModel:
    """Says of a prompt with more tokens that its answer is longer."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def run(self, outputs, inputs):
        lengths = inputs[MASK].sum(axis=(1, 2))[:, None]
        says = {EXCEEDS: self.scale * np.hstack([lengths / 20, lengths / 40]), EMBEDDING: np.hstack([lengths] * 4)}
        return [says[name].astype(np.float32) for name in outputs]


def predictor(model=None, services=None):
    return EncoderPredictor(model or FakeModel(), PromptTokens(new_tokenizer(["a"], 300), 20, 1), CLASSES, services)


def test_probabilities_of_classes_are_those_between_borders():
    (found,) = predictor().predict(["chat"], ["xxxxxxx"])  # ten tokens
    assert found.predictor == "encoder"
    assert found.borders == (10, 100)
    assert found.probabilities == pytest.approx((0.5, 0.25, 0.25))


def test_rows_come_in_the_order_of_prompts():
    prompts = ["x" * length for length in (12, 1, 15, 3, 8)] * 8  # more than one batch
    longest = [one.probabilities[-1] for one in predictor().predict(["chat"] * len(prompts), prompts)]
    alone = [predictor().predict(["chat"], [prompt])[0].probabilities[-1] for prompt in prompts[:5]]
    assert sorted(range(5), key=longest.__getitem__) == sorted(range(5), key=alone.__getitem__) == [1, 3, 4, 0, 2]
    assert predictor().predict([], []) == []


def test_service_that_it_was_not_trained_for_gets_nothing():
    own = predictor(services=("chat",))
    assert [own.serves(service) for service in ("chat", "code")] == [True, False]
    assert own.predict(["code"], ["x"]) == [None]
    assert own.predict(["code", "chat", "code"], ["x", "xxxxxxx", "x"]) == [
        None,
        *predictor().predict(["chat"], ["xxxxxxx"]),
        None,
    ]


def test_embeddings_have_length_one():
    assert np.linalg.norm(predictor().embed(["x", "yy"]), axis=1) == pytest.approx([1.0, 1.0])


def test_model_that_says_no_numbers_raises():
    with pytest.raises(PermanentError, match="the encoder fails"):
        predictor(FakeModel(scale=float("nan"))).predict(["chat"], ["x"])


@pytest.fixture
def loads(monkeypatch):
    """The folders that were loaded."""
    found = []

    def load(folder, services, threads):
        found.append((folder.parent.name, int(folder.name)))
        return predictor(services=services)

    monkeypatch.setattr(in_use.EncoderPredictor, "load", load)
    return found


def test_what_is_put_into_use_is_loaded_once_and_what_is_taken_out_says_nothing(tmp_path, loads):
    versions, encoder = Versions(tmp_path), EncoderInUse(tmp_path)
    publish(versions), publish(versions)
    assert (encoder.predict(["chat"], ["x"]), encoder.used) == ([None], None)
    assert not encoder.serves("chat")
    versions.use("chat", 1, ("chat",))
    assert encoder.serves("code"), "what it serves is not known yet"
    assert encoder.predict(["chat"], ["x"])[0] is not None
    versions.use("chat", 2, ("chat",))
    assert encoder.predict(["chat"], ["x"])[0] is not None
    assert encoder.predict(["code"], ["x"]) == [None]
    assert [encoder.serves(service) for service in ("chat", "code")] == [True, False]
    assert loads == [("chat", 1), ("chat", 2)]
    versions.off()
    assert (encoder.predict(["chat"], ["x"]), encoder.used, encoder.fault) == ([None], None, "")


def test_version_that_cannot_be_loaded_leaves_the_one_before_and_says_why(tmp_path, loads, caplog):
    versions, encoder = Versions(tmp_path), EncoderInUse(tmp_path)
    publish(versions)
    versions.use("chat")
    encoder.refresh()
    versions.pointer.write_bytes(b"broken")
    assert encoder.predict(["chat"], ["x"]) != [None]
    assert encoder.used.version == 1
    assert "in_use.json cannot be read" in encoder.fault
    assert encoder.fault in caplog.text


def test_without_onnx_runtime_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(needs, "find_spec", lambda name: None)
    versions, encoder = Versions(tmp_path), EncoderInUse(tmp_path)
    publish(versions)
    versions.use("chat")
    encoder.refresh()
    assert encoder.fault == 'to serve an encoder needs onnxruntime: pip install "greenserve[learned]"'
