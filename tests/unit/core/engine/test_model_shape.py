from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from core.engine.engine_model import MODELS, UnknownConfiguration, engine_model
from core.engine.model_shape import BadShape, ModelParams, is_key, shape_of_key

LLAMA = MODELS["Llama3-70B"]
MOE = MODELS["Qwen3-30B-A3B"]


@st.composite
def shapes(draw: st.DrawFn) -> ModelParams:
    layers, hidden, vocab = draw(st.integers(1, 200)), draw(st.integers(64, 20_000)), draw(st.integers(1_000, 300_000))
    experts = draw(st.sampled_from([0, 8, 128]))
    expert_params = draw(st.integers(1, 10**12)) if experts else 0
    windows = draw(st.integers(0, layers))
    bits = st.sampled_from([0.0, 4.0, 4.1562, 4.25, 8.0, 16.0])
    return ModelParams(
        name="any",
        params=2 * vocab * hidden + expert_params + draw(st.integers(0, 10**12)),
        layers=layers,
        hidden=hidden,
        heads=draw(st.integers(1, 256)),
        kv_heads=draw(st.integers(1, 128)),
        head_dim=draw(st.sampled_from([64, 128, 160, 256])),
        vocab=vocab,
        expert_params=expert_params,
        experts=experts,
        top_k=draw(st.integers(1, 8)) if experts else 0,
        expert_layers=draw(st.integers(1, layers)) if experts else 0,
        tied=draw(st.booleans()),
        dtype_bytes=draw(st.sampled_from([2, 4])),
        latent=draw(st.sampled_from([0, 576])),
        window=draw(st.sampled_from([128, 4096])) if windows else 0,
        window_layers=windows,
        dense_bits=draw(bits),
        expert_bits=draw(bits),
        kv_bits=draw(bits),
        compute_bits=draw(st.sampled_from([0, 8, 16])),
    )


@given(shapes())
def test_key_says_the_whole_shape_when_it_is_read_back(shape: ModelParams) -> None:
    assert is_key(shape.key)
    assert shape_of_key(shape.key) == shape
    assert shape_of_key(shape.key).key == shape.key


@given(shapes(), shapes())
def test_two_shapes_are_one_only_when_their_keys_are(one: ModelParams, other: ModelParams) -> None:
    assert (one == other) == (one.key == other.key)


def test_names_do_not_tell_shapes_apart() -> None:
    tuned = replace(LLAMA, name="acme/llama-tuned")
    assert tuned == LLAMA
    assert tuned.key == LLAMA.key


@pytest.mark.parametrize("name", sorted(MODELS))
def test_engine_model_says_the_same_when_a_shape_is_named_or_given(name: str) -> None:
    named = engine_model(name, "H100-SXM-80GB", 4)
    given_shape = engine_model(MODELS[name].key, "H100-SXM-80GB", 4)
    assert given_shape.iteration(1980.0, [(500, 0)], 8, 9_000.0) == named.iteration(1980.0, [(500, 0)], 8, 9_000.0)
    assert given_shape.kv_capacity_tokens == named.kv_capacity_tokens


def test_quantized_weights_and_caches_take_fewer_bytes() -> None:
    plain = engine_model(MOE.key, "H100-SXM-80GB", 1)
    small = engine_model(replace(MOE, expert_bits=4.25, kv_bits=8.0).key, "H100-SXM-80GB", 1)
    assert plain.weight_bytes - small.weight_bytes == pytest.approx(MOE.expert_params * (16 - 4.25) / 8)
    assert small.constants.kv_bytes * 2 == plain.constants.kv_bytes
    assert small.iteration(1980.0, (), 64, 64_000.0).t_s < plain.iteration(1980.0, (), 64, 64_000.0).t_s


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layers": 0}, "layers"),
        ({"params": 1e9}, "params"),
        ({"experts": 8, "top_k": 0}, "top_k"),
        ({"window_layers": 81}, "layers"),
    ],
)
def test_shape_is_refused_when_no_transformer_has_it(changes: dict[str, int], field: str) -> None:
    with pytest.raises(BadShape, match=f"^{field}: "):
        replace(LLAMA, **changes)


@given(st.text(max_size=80))
def test_other_texts_are_no_keys(text: str) -> None:
    assume(not is_key(text))
    with pytest.raises(BadShape, match="no shape's key"):
        shape_of_key(text)


def test_model_is_unknown_when_it_is_neither_name_nor_shape() -> None:
    with pytest.raises(UnknownConfiguration, match="unknown model 'Llama9'"):
        engine_model("Llama9", "H100-SXM-80GB", 1)
    impossible = LLAMA.key.replace("p70554000000", "p1000")
    with pytest.raises(UnknownConfiguration, match="params"):
        engine_model(impossible, "H100-SXM-80GB", 1)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "latent", "able"),
    [
        (64, 8, 0, [1, 2, 4, 8, 16]),  # beyond 8 GPUs each KV head is kept twice
        (40, 8, 0, [1, 2, 4, 8]),  # 5 GPUs share the heads, and not the KV heads
        (40, 10, 0, [1, 2, 5, 10]),
        (20, 20, 0, [1, 2, 4, 5, 10]),
        (128, 128, 576, [1, 2, 4, 8, 16]),
    ],
)
def test_degrees_are_those_that_share_heads_evenly(heads: int, kv_heads: int, latent: int, able: list[int]) -> None:
    shape = replace(LLAMA, heads=heads, kv_heads=kv_heads, latent=latent)
    assert [tp for tp in range(1, 17) if shape.splits(tp)] == able
    assert shape.split_fault(3).endswith(f"choose one of {', '.join(map(str, able))}")
    assert not shape.split_fault(able[-1])


def test_an_engine_is_refused_by_its_degree_when_the_gpus_cannot_share_the_heads() -> None:
    with pytest.raises(UnknownConfiguration, match="3 GPUs cannot share 64 attention heads and 8 KV heads") as refused:
        engine_model("Llama3-70B", "H100-SXM-80GB", 3)
    assert refused.value.field_name == "tp"


@pytest.mark.parametrize("engine", ["vllm-v1", "vllm-2025"])
def test_gpus_beyond_the_kv_heads_keep_copies_of_the_cache(engine: str) -> None:
    whole, copied = (engine_model("Qwen3-30B-A3B", "H100-SXM-80GB", tp, engine) for tp in (4, 8))
    assert whole.constants.kv_bytes == MOE.kv_bytes
    assert copied.constants.kv_bytes == 2 * MOE.kv_bytes
    latent = replace(LLAMA, latent=576).key
    assert engine_model(latent, "H100-SXM-80GB", 8, engine).constants.kv_bytes == 8 * shape_of_key(latent).kv_bytes
