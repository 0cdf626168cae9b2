"""An encoder is trained, exported, kept, served and put into use, with real PyTorch and ONNX Runtime."""

from __future__ import annotations

import csv
import functools
import json
import random
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("length_encoder.py")
KINDS = ("tiny", "short", "medium", "long", "endless")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of prompts whose first word says how long the answer is."""
    path, seeded = tmp_path_factory.mktemp("data") / "rows.csv", random.Random(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["prompt", "tokens"])
        for number in range(300):
            kind = number % len(KINDS)
            filler = "and so on " * seeded.randrange(6)
            tokens = round((100 * kind + 20) * seeded.uniform(1.0, 1.2))
            rows.writerow([f"{KINDS[kind]} answer {seeded.randrange(10**6)} please {filler}", tokens])
    return path


@pytest.fixture
def run(with_torch, tmp_path):
    return functools.partial(with_torch, GREENSERVE_VAR=str(tmp_path / "var"))


def test_small_encoder_learns_from_nothing_and_the_same_seed_gives_the_same_files(run, data, tmp_path):
    words = ("greenserve", "predictor", "train", "--data", data, "--name", "chat", "--epochs", 10, "--json")
    first, second = (json.loads(run(*words))["manifest"] for _ in range(2))
    assert first["scores"]["mae_tokens"] < 60  # lengths are up to 500
    assert first["scores"]["recall_longest"] > 0.8
    assert first["encoder"] == "bert, from nothing"
    assert first["sha256"] == second["sha256"]
    run("greenserve", "predictor", "use", "chat", 1)
    run("greenserve", "predictor", "use", "chat")
    assert run("greenserve", "predictor", "rollback", "chat") == "chat 1 is in use for all services.\n"
    served = json.loads(run(SCRIPT.with_name("served_encoder.py"), tmp_path / "var", *(f"{k} answer" for k in KINDS)))
    assert served["classes"][0] == 0
    assert served["classes"][-1] == 4
    assert served["classes"] == sorted(served["classes"])
    assert served["torch"] is False


def test_encoder_of_each_kind_is_trained_exported_and_served_whatever_is_asked_with_it(run, data, tmp_path):
    found = json.loads(run(SCRIPT, tmp_path, data))
    assert {name: (one["kind"], one["chunks"], one["tokens"]) for name, one in found.items()} == {
        "bert bert": ("bert", 1, 96),
        "bert freesh": ("bert", 8, 96),
        "xlm-roberta bert": ("xlm-roberta", 1, 96),
        "modernbert bert": ("modernbert", 1, 96),
    }
    assert {one["width"] for one in found.values()} == {32, 2 * 384}
    for name, one in found.items():
        assert one["apart"] < 0.02, name  # activations are quantised by batch
        assert one["norms"] == pytest.approx([1.0] * 3, abs=1e-5), name
    stopped = found["bert bert"]["interrupted"]
    assert stopped == {"epochs": 1, "said": "Interrupted: the best so far is kept, that of epoch 1.", "served": 3}
    assert all(words in found["bert bert"]["refused"] for words in ("no *.safetensors", "pickles"))
