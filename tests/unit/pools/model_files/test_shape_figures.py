"""A shape in figures and in words, and against the memory of GPUs."""

from __future__ import annotations

import pytest

from core.engine.engine_params import UnknownConfiguration
from pools.model_files.hugging_face import shape_of_document
from pools.model_files.shape_figures import figures, fit, fits, words
from tests.fakes.hub import LLAMA, MOE

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}


def test_figures_are_those_of_the_shape() -> None:
    found = figures(shape_of_document(MOE))
    assert found.parameters == pytest.approx(30.5e9, rel=0.01)
    assert found.active_parameters == pytest.approx(3.3e9, rel=0.02)
    assert found.weight_bytes == 2.0 * found.parameters
    assert found.kv_bytes_per_token == 48 * 2 * 4 * 128 * 2
    assert (found.experts, found.experts_per_token, found.weight_bits, found.kv_bits) == (128, 8, 16.0, 16.0)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            LLAMA,
            "8.03 billion parameters, 16.1 GB of weights (16 bits), 131 kB of KV cache a token, "
            "all layers attend to the whole context",
        ),
        (
            {**MOE, "quantization_config": AWQ},
            "30.5 billion parameters, 3.35 billion active, 16.8 GB of weights (4.16 bits, multiplied in 16), "
            "98 kB of KV cache a token, all layers attend to the whole context",
        ),
        (
            {**MOE, "num_experts": 5120},
            "1,162 billion parameters, 3.84 billion active, 2,323 GB of weights (16 bits), "
            "98 kB of KV cache a token, all layers attend to the whole context",
        ),
    ],
)
def test_words_say_what_plans_go_by(document: dict[str, object], expected: str) -> None:
    assert words(shape_of_document(document)) == expected


def test_windows_are_shown_with_their_layers() -> None:
    shape = shape_of_document({**LLAMA, "model_type": "gemma3_text", "sliding_window": 1024, "head_dim": 128})
    assert words(shape).endswith("27 of 32 layers attend to 1,024 tokens")
    shape = shape_of_document({**LLAMA, "model_type": "mistral", "sliding_window": 4096})
    assert words(shape).endswith("all layers attend to 4,096 tokens")


def test_room_is_what_the_cache_has_beside_the_weights() -> None:
    found = fit(shape_of_document(LLAMA).key, "L40S-48GB", 1, "vllm-v1")
    assert found.fits
    assert found.kv_capacity_tokens == int((found.room_gb - found.weight_gb) * 1e9 / 131_072)
    assert found.reason == ""


def test_misfit_is_explained_in_figures() -> None:
    key = shape_of_document({**LLAMA, "num_hidden_layers": 320}).key
    one, two = fits(key, ["L40S-48GB"], (1, 8), "vllm-v1")
    assert not one.fits
    assert one.reason == ("142 GB of weights, and 1 x L40S-48GB have 41 of their 48 GB for weights and KV cache")
    assert two.fits


def test_unknown_gpu_is_refused() -> None:
    with pytest.raises(UnknownConfiguration, match="unknown gpu"):
        fit(shape_of_document(LLAMA).key, "abacus", 1, "vllm-v1")
