"""Makes tiny untrained encoders of each kind, trains on them, and prints as JSON what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, BertConfig, ModernBertConfig, XLMRobertaConfig

from pools.lengths.encoder.build import build
from pools.lengths.encoder.network import encoder_of
from pools.lengths.encoder.predictor import EncoderPredictor
from pools.lengths.encoder.prompt_tokens import new_tokenizer
from pools.lengths.encoder.training import TrainingOptions
from pools.lengths.encoder.training_data import BadData, LengthData, read

WORDS = 512
PROMPTS = ["one", "two words " * 200, ""]
ANY = ["any"] * len(PROMPTS)  # services
SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "pad_token_id": 0,
}
ENDS = {"bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
CONFIGS = {
    "bert": BertConfig(**SHAPE, max_position_embeddings=96),
    "xlm-roberta": XLMRobertaConfig(**SHAPE, max_position_embeddings=98),
    "modernbert": ModernBertConfig(**SHAPE, **ENDS, max_position_embeddings=96, local_attention=16),
}


def make(kind: str, folder: Path, rows: LengthData) -> Path:
    torch.manual_seed(0)
    encoder = folder / kind
    AutoModel.from_config(CONFIGS[kind]).save_pretrained(encoder)
    (encoder / "tokenizer.json").write_bytes(new_tokenizer(rows.prompts, WORDS))
    return encoder


def train(encoder: Path, preset: str, rows: LengthData, out: Path) -> dict[str, Any]:
    out.mkdir()
    options = TrainingOptions(preset, encoder, 0, 1)
    made = build(rows, ("prompt", "tokens"), options, "int8", out, lambda *_: None, lambda _: None)
    served = EncoderPredictor.load(out)
    together = [odds.probabilities for odds in served.predict(ANY, PROMPTS) if odds is not None]
    alone = [odds.probabilities for prompt in PROMPTS for odds in served.predict(ANY[:1], [prompt]) if odds is not None]
    return {
        "kind": made.encoder,
        "chunks": made.max_chunks,
        "tokens": made.max_tokens,
        "width": made.width,
        "apart": float(np.abs(np.subtract(together, alone)).max()),
        "norms": np.linalg.norm(served.embed(PROMPTS), axis=1).tolist(),
    }


def interrupted(encoder: Path, rows: LengthData, out: Path) -> dict[str, Any]:
    """Trains until Ctrl-C after the first of five epochs."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    out.mkdir()
    said: list[str] = []
    options = TrainingOptions("bert", encoder, 0, 5)
    made = build(rows, ("prompt", "tokens"), options, "float32", out, stop, said.append)
    served = len(EncoderPredictor.load(out).predict(ANY, PROMPTS))
    return {"epochs": made.training.epochs, "said": said[-1], "served": served}


def refusal(encoder: Path) -> str:
    """Returns what is said of a folder whose weights are a pickle."""
    (encoder / "model.safetensors").rename(encoder / "pytorch_model.bin")
    try:
        encoder_of(encoder)
    except BadData as error:
        return str(error)
    return ""


def main(folder: Path, data: Path) -> None:
    rows = read(data, "prompt", "tokens")
    encoders = {kind: make(kind, folder, rows) for kind in CONFIGS}
    tried = [(kind, "bert") for kind in CONFIGS] + [("bert", "freesh")]
    found = {
        f"{kind} {preset}": train(encoders[kind], preset, rows, folder / f"{kind}-{preset}") for kind, preset in tried
    }
    found["bert bert"]["interrupted"] = interrupted(encoders["bert"], rows, folder / "interrupted")
    found["bert bert"]["refused"] = refusal(encoders["bert"])
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
