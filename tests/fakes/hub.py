"""A Hugging Face hub that gives one answer, and remembers what it was asked for; and configurations of models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


class Hub:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: httpx2.Response | Exception = httpx2.Response(200, json=LLAMA)
        self.redirects: list[str] = []  # that come before the answer
        self.asked: list[str] = []
        monkeypatch.setattr(httpx2, "stream", self.stream)

    @contextmanager
    def stream(self, method: str, address: str, *, timeout: float, follow_redirects: bool) -> Iterator[httpx2.Response]:
        assert method == "GET"
        assert timeout <= 10.0
        assert not follow_redirects, "where each leads is looked at"
        self.asked.append(address)
        if self.redirects:
            yield httpx2.Response(307, headers={"location": self.redirects.pop(0)})
            return
        if isinstance(self.answer, Exception):
            raise self.answer
        self.answer.request = httpx2.Request("GET", address)
        yield self.answer
