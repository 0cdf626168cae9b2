"""How long one token keeps an engine busy."""

from __future__ import annotations

from core.accounting.token_time import OTHERS, token_time_of


def test_output_token_keeps_an_engine_busy_for_longer_than_one_of_a_prompt() -> None:
    found = token_time_of("chat", "Llama3-8B", "H100-SXM-80GB", 1, "vllm-v1")
    assert 0.0 < 5.0 * found.prefill_s < found.decode_s < 0.01
    assert found.source == "engine model of chat on H100-SXM-80GB/TP1 under vllm-v1"


def test_model_that_nobody_knows_has_the_default_weights() -> None:
    assert token_time_of("chat", "No-Such-Model", "H100-SXM-80GB", 1, "vllm-v1") is OTHERS
