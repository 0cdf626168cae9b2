"""Makes a LoRA adapter of the tiny model: random weights in PEFT's files, written as safetensors by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def make(folder: Path, model: Path, rank: int = 8, seed: int = 0) -> Path:
    """Writes an adapter of the attention's queries and values, strong enough to change greedy answers."""
    config = json.loads((model / "config.json").read_text())
    hidden, rng = config["hidden_size"], np.random.default_rng(seed)
    head = hidden // config["num_attention_heads"]
    widths = {"q_proj": hidden, "v_proj": head * config["num_key_value_heads"]}
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, out in widths.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = rng.normal(0.0, 0.5, (rank, hidden)).astype(np.float32)
            tensors[f"{at}.lora_B.weight"] = rng.normal(0.0, 0.5, (out, rank)).astype(np.float32)
    header, data = {}, b""
    for name, tensor in tensors.items():
        begins = len(data)
        data += tensor.tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begins, len(data)]}
    head_bytes = json.dumps(header).encode()
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(len(head_bytes).to_bytes(8, "little") + head_bytes + data)
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                **{"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(model)},
                **{"r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0, "bias": "none"},
                "target_modules": list(widths),
            }
        )
    )
    return folder
