"""Shapes from config.json. Numbers of parameters are those that the models' cards publish."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from core.engine.engine_model import engine_model
from core.engine.image_rule import image_rule_of
from core.engine.model_config import BadConfig
from core.engine.model_shape import is_key
from pools.model_files.hugging_face import fetch, parse, shape_from, shape_of_document
from tests.fakes.hub import LLAMA, MOE, Hub


@pytest.mark.parametrize(
    ("folder", "params", "active", "weights_gb", "kv_bytes"),
    [
        ("meta-llama__Llama-3.3-70B-Instruct", 70.6e9, 70.6e9, 141.1, 327_680),
        ("Qwen__Qwen3-30B-A3B-Instruct-2507", 30.5e9, 3.3e9, 61.1, 98_304),
        ("deepseek-ai__DeepSeek-V3", 671e9, 37e9, 673, 70_272),
        ("openai__gpt-oss-120b", 116.8e9, 5.7e9, 65.2, 73_728),
        ("google__gemma-3-27b-it", 27.0e9, 27.0e9, 54.0, 507_904),
        ("mistralai__Mistral-7B-Instruct-v0.3", 7.25e9, 7.25e9, 14.5, 131_072),
        ("meta-llama__Llama-4-Scout-17B-16E-Instruct", 107.8e9, 17.2e9, 215.5, 196_608),
        ("meta-llama__Llama-4-Maverick-17B-128E-Instruct-FP8", 400.7e9, 17.2e9, 414.9, 196_608),
        ("Qwen__Qwen3-235B-A22B-Instruct-2507-FP8", 235e9, 22e9, 236.3, 192_512),
    ],
)
def test_published_models_have_their_published_sizes(
    test_data: Path, folder: str, params: float, active: float, weights_gb: float, kv_bytes: float
) -> None:
    shape = shape_from(str(test_data / "model_configs" / folder))
    assert shape.params == pytest.approx(params, rel=0.005)
    assert shape.active_params == pytest.approx(active, rel=0.03)
    assert shape.weight_bytes / 1e9 == pytest.approx(weights_gb, rel=0.005)
    assert shape.kv_bytes == kv_bytes


def test_every_published_configuration_can_be_planned(test_data: Path) -> None:
    folders = sorted((test_data / "model_configs").iterdir())
    assert folders
    for folder in folders:
        model = engine_model(shape_from(str(folder)).key, "H200-SXM-141GB", 8)
        assert model.iteration(1980.0, [(1000, 0)], 4, 4000.0).t_s > 0.0, folder.name


def test_parameters_are_counted_from_the_shape() -> None:
    shape = shape_of_document(LLAMA)
    assert shape.params == 8_030_261_248  # as the published checkpoint has them
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.tied) == (32, 8, 128, False)
    assert shape_of_document({**LLAMA, "tie_word_embeddings": True}).params == shape.params - 128_256 * 4096


def test_fine_tunes_share_their_bases_shape() -> None:
    tuned = {**LLAMA, "architectures": ["Other"], "max_position_embeddings": 8192, "eos_token_id": 7}
    assert shape_of_document(tuned, "tuned").key == shape_of_document(LLAMA, "base").key


_QWEN = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
_QWEN |= {"num_key_value_heads": 4, "vocab_size": 152064}


@pytest.mark.parametrize(
    ("base", "kind", "nested"),
    [
        ("qwen2", "qwen2_vl", False),
        ("qwen2", "qwen2_5_vl", False),
        ("qwen2", "qwen2_5_vl", True),
        ("qwen3", "qwen3_vl", True),
    ],
)
def test_model_that_reads_images_has_its_language_models_shape_and_a_rule_of_its_own(
    base: str, kind: str, nested: bool
) -> None:
    text = _QWEN | {"tie_word_embeddings": False}
    config = {"text_config": text, "tie_word_embeddings": False} if nested else text
    shape = shape_of_document(config | {"model_type": kind, "torch_dtype": "bfloat16"})
    assert shape.key == shape_of_document(text | {"model_type": base, "torch_dtype": "bfloat16"}).key
    assert image_rule_of({"model_type": kind}) is not None
    assert image_rule_of({"model_type": base}) is None


def test_experts_count_as_all_and_as_active() -> None:
    shape = shape_of_document(MOE)
    assert (shape.experts, shape.top_k, shape.expert_layers) == (128, 8, 48)
    assert shape.expert_params == 48 * 128 * 3 * 2048 * 768
    assert shape.active_params < 0.12 * shape.params
    dense_first = shape_of_document({**MOE, "mlp_only_layers": [0, 1]})
    assert dense_first.expert_layers == 46
    assert dense_first.params < shape.params


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "mistral", "sliding_window": None}, (0, 0)),
        ({"model_type": "mistral", "sliding_window": 4096}, (4096, 32)),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, (0, 0)),
        ({"model_type": "gemma3_text", "sliding_window": 1024, "head_dim": 128}, (1024, 27)),
    ],
)
def test_windows_are_of_the_layers_that_have_them(changes: dict[str, Any], window: tuple[int, int]) -> None:
    shape = shape_of_document({**LLAMA, **changes})
    assert (shape.window, shape.window_layers) == window


@pytest.mark.parametrize(
    ("quantization", "dense", "experts", "compute"),
    [
        ({"quant_method": "fp8"}, 8.0, 8.0, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4.1562, 4.15625, 16),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 4.0, 4.0, 16),
        ({"quant_method": "mxfp4"}, 16.0, 4.25, 16),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5, 4.5, 16),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {}}},
            },
            8.0,
            8.0,
            16,
        ),
    ],
)
def test_bits_are_those_of_the_checkpoint(quantization: Any, dense: float, experts: float, compute: int) -> None:
    shape = shape_of_document({**MOE, "quantization_config": quantization})
    assert (shape.dense_bits, shape.expert_bits, shape.compute_bits) == (dense, experts, compute)
    assert shape.kv_bits == 16.0


def test_parts_that_were_not_converted_keep_their_bits() -> None:
    kept = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn"]}
    shape = shape_of_document({**LLAMA, "quantization_config": kept})
    assert 8.0 < shape.dense_bits < 16.0


def test_cache_has_eight_bits_when_the_checkpoint_or_the_operator_says_so() -> None:
    assert shape_of_document(LLAMA, kv_bits=8.0).kv_bits == 8.0
    scheme = {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8}}
    assert shape_of_document({**LLAMA, "quantization_config": scheme}).kv_bits == 8.0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "nemotron_h"}, "model_type"),
        ({"model_type": ""}, "model_type"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "model_type"),
        ({"model_type": "bert"}, "model_type"),
        ({"layer_types": ["linear_attention"] * 32, "model_type": "qwen3"}, "layer_types"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"torch_dtype": "int8"}, "dtype"),
        ({"num_hidden_layers": -3}, ""),
        ({"vocab_size": "many"}, ""),
    ],
)
def test_configuration_is_refused_with_the_field_when_it_cannot_be_computed(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadConfig) as refused:
        shape_of_document({**LLAMA, **changes})
    assert refused.value.field_name == field or not field
    assert len(str(refused.value)) > 20


def test_shape_is_read_from_a_folder_and_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert shape_from(str(tmp_path)) == shape_from(str(tmp_path / "config.json")) == shape_of_document(LLAMA)


@pytest.mark.parametrize("text", ["{", "[]", "7", "x" * 2_000_000])
def test_file_is_refused_when_it_is_no_configuration(text: str) -> None:
    with pytest.raises(BadConfig, match=r"^config: "):
        parse(text)


def test_place_is_refused_when_nothing_is_there(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no folder with a config"):
        shape_from(str(tmp_path))


def test_repository_of_the_hub_is_asked_for_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    assert shape_from("meta-llama/Llama-3.1-8B") == shape_of_document(LLAMA)
    assert hub.asked == ["https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx2.Response(404), "no such repository, or one that needs an account"),
        (httpx2.Response(503), "it answers 503"),
        (httpx2.ConnectError("no network"), "the hub could not be asked"),
    ],
)
def test_remedy_is_another_source_when_the_hub_does_not_help(
    monkeypatch: pytest.MonkeyPatch, answer: httpx2.Response | Exception, words: str
) -> None:
    Hub(monkeypatch).answer = answer
    with pytest.raises(BadConfig, match=words) as refused:
        shape_from("acme/model")
    assert "take its config.json from elsewhere" in str(refused.value)


def test_answer_of_the_hub_is_read_no_further_than_a_configuration_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    Hub(monkeypatch).answer = httpx2.Response(200, content=(b"x" * 100_000 for _ in range(1_000)))
    with pytest.raises(BadConfig, match="longer than 1,000,000 bytes"):
        fetch("acme/model")


def test_redirects_are_followed_within_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    hub.redirects = ["/api/resolve-cache/models/acme/model/config.json", "https://cas-bridge.xethub.hf.co/x?y=1"]
    assert fetch("acme/model") == LLAMA
    assert hub.asked[1:] == [
        "https://huggingface.co/api/resolve-cache/models/acme/model/config.json",
        "https://cas-bridge.xethub.hf.co/x?y=1",
    ]


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://huggingface.co/x",
        "https://huggingface.co:8443/x",
        "https://huggingface.co.evil.example/x",
        "https://evilhf.co/x",
        "https://[::1/x",
        "//10.0.0.1/x",
        "file:///etc/passwd",
    ],
)
def test_redirect_that_leads_out_of_the_hub_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    hub = Hub(monkeypatch)
    hub.redirects = [address]
    with pytest.raises(BadConfig, match="no host of the hub over https"):
        fetch("acme/model")
    assert len(hub.asked) == 1


def test_circle_of_redirects_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    hub.redirects = ["/x"] * 9
    with pytest.raises(BadConfig, match="more than 5 redirects"):
        fetch("acme/model")


@pytest.mark.parametrize("text", ['{"hidden_size": NaN}', '{"hidden_size": Infinity}', "[" * 100_000])
def test_file_is_refused_when_databases_would_refuse_it(text: str) -> None:
    with pytest.raises(BadConfig, match="not JSON"):
        parse(text)


@pytest.mark.parametrize("repository", ["", "llama", "a/b/c", "https://evil.example/x", "a/b?c"])
def test_only_names_of_repositories_are_fetched(monkeypatch: pytest.MonkeyPatch, repository: str) -> None:
    hub = Hub(monkeypatch)
    with pytest.raises(BadConfig, match="no owner/name of the hub"):
        fetch(repository)
    assert hub.asked == []


@pytest.mark.parametrize("value", [-1, 1.5, "x", [], {}, [None], {"a": 1}, 10**400, True])
@pytest.mark.parametrize(
    "name",
    [
        "hidden_size",
        "layer_types",
        "text_config",
        "quantization_config",
        "sliding_window",
        "torch_dtype",
        "num_experts",
    ],
)
def test_values_that_no_model_has_are_refused_or_left_out(name: str, value: Any) -> None:
    for document in (LLAMA, MOE):
        with suppress(BadConfig):
            found = shape_of_document({**document, name: value})
            assert is_key(found.key)
            assert len(found.key) <= 200
