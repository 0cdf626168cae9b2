from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from core.engine.aiconfigurator import (
    MODELS,
    SYSTEMS,
    AiconfiguratorError,
    AiconfiguratorMissing,
    import_profile,
    profile_of,
)
from core.engine.engine_model import UnknownConfiguration, engine_model
from core.engine.profiled_engine import ProfiledEngine
from core.engine.profiles import load_profiles, write_profile
from core.types import Source

INSTALLED = importlib.util.find_spec("aiconfigurator_core") is not None
ONE = engine_model("Llama3-8B", "A100-80GB", 1)


class FakeLatencies:
    """Answers as aiconfigurator's EngineHandle does, in milliseconds, with figures of our own."""

    def predict_prefill_latency(self, bs: int, isl: int, prefix: int = 0) -> float:
        return 5.0 + 0.05 * bs * isl

    def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float:
        return 6.0 + 0.1 * gen_tokens + self._decode_attention(gen_tokens, isl + osl // 2)

    def mixed_step_breakdown(
        self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int
    ) -> tuple[float, float, float, float]:
        rest, prefill = 6.0 + 0.04 * ctx_tokens + 0.1 * gen_tokens, 1e-6 * isl**2
        decode = self._decode_attention(gen_tokens, isl + osl // 2)
        return rest + prefill + decode, rest, prefill, decode

    def _decode_attention(self, sequences: int, context: int) -> float:
        return 1e-4 * sequences * context


def test_profile_asks_for_each_iteration_at_its_own_prompt_and_contexts() -> None:
    profile = profile_of(FakeLatencies(), ONE, "aiconfigurator 0, vllm 0")
    at = {(p.prefill_tokens, p.batch, p.context_tokens): p for p in profile.points}
    assert at[0, 8, 8 * 512.0].t_s == pytest.approx((6.0 + 0.8 + 1e-4 * 8 * 513) * 1e-3)
    assert at[1024, 0, 0.0].t_s == pytest.approx((5.0 + 51.2) * 1e-3)
    mixed = 6.0 + 0.04 * 1024 + 0.8 + 1e-6 * 1024**2 + 1e-4 * 8 * 513
    assert at[1024, 8, 8 * 512.0].t_s == pytest.approx(mixed * 1e-3)
    assert {p.mhz for p in profile.points} == {1410.0}
    assert {p.watts for p in profile.points} == {None}
    assert all(p.context_tokens + p.prefill_tokens <= ONE.kv_capacity_tokens for p in profile.points)


def test_prediction_is_published_with_modelled_power_when_inside_the_profile(tmp_path: Path) -> None:
    write_profile(tmp_path / "p.csv", profile_of(FakeLatencies(), ONE, "aiconfigurator 0, vllm 0"))
    (profile,) = load_profiles(tmp_path / "p.csv")
    assert (profile.source, profile.origin) == (Source.PUBLISHED, "aiconfigurator 0, vllm 0")
    engine = ProfiledEngine(profile)
    for batch in (8, 20):
        found = engine.iteration(1410.0, (), batch, batch * 1000.0)
        assert found.iteration.source is Source.PUBLISHED
        assert found.watts_source is Source.MODELLED
        assert found.iteration.t_s == pytest.approx((6.0 + 0.1 * batch + 1e-4 * batch * 1001) * 1e-3, rel=0.03)
        assert (found.margins.time, found.margins.power) == (0.10, 0.10)
    outside = engine.iteration(1005.0, (), 8, 8000.0)
    assert outside.iteration.source is Source.MODELLED


def test_import_is_refused_when_the_weights_do_not_fit() -> None:
    with pytest.raises(AiconfiguratorError, match="does not fit"):
        profile_of(FakeLatencies(), engine_model("Llama3-70B", "A100-80GB", 1), "")


def test_import_says_what_is_missing_when_the_database_has_a_hole() -> None:
    class Hole(FakeLatencies):
        def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float:
            raise RuntimeError("data missing for that kernel")

    with pytest.raises(AiconfiguratorError, match="Llama3-8B on 1 x A100-80GB, vllm 0: data missing"):
        profile_of(Hole(), ONE, "vllm 0")


@pytest.mark.parametrize(
    ("model", "gpu", "backend", "says"),
    [
        ("Llama2-70B", "A100-80GB", "vllm", "model 'Llama2-70B' is not in its database"),
        ("Llama3-8B", "V100-16GB", "vllm", "gpu 'V100-16GB' is not in its database"),
        ("Llama3-8B", "A100-80GB", "ollama", "backend 'ollama'"),
    ],
)
def test_import_names_what_the_database_lacks_when_it_lacks_it(model: str, gpu: str, backend: str, says: str) -> None:
    with pytest.raises(AiconfiguratorError, match=says):
        import_profile(model, gpu, 1, backend)


def test_import_names_what_we_do_not_know_when_it_is_asked_for() -> None:
    with pytest.raises(UnknownConfiguration, match="Llama9"):
        import_profile("Llama9", "A100-80GB", 1)


SHAPE = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "config.json"),
        ("{", "config.json"),
        ("[]", "not a JSON object"),
        (json.dumps(SHAPE | {"num_hidden_layers": 80}), "num_hidden_layers is 80, Llama3-8B has 32"),
        (json.dumps(SHAPE | {"num_local_experts": 8}), "8 experts, Llama3-8B has 0"),
    ],
)
def test_shape_is_refused_when_it_is_of_another_model(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(AiconfiguratorError, match=says):
        import_profile("Llama3-8B", "A100-80GB", 1, shape=tmp_path)


@pytest.mark.skipif(INSTALLED, reason="aiconfigurator is installed")
def test_import_says_so_when_the_extra_is_missing() -> None:
    with pytest.raises(AiconfiguratorMissing, match="not installed"):
        import_profile("Llama3-8B", "A100-80GB", 1)


@pytest.mark.skipif(not INSTALLED, reason="the extra aiconfigurator is not installed")
@pytest.mark.parametrize("gpu", sorted(SYSTEMS))
@pytest.mark.parametrize("model", sorted(MODELS))
def test_published_decodes_are_near_the_closed_form_when_imported(model: str, gpu: str) -> None:
    instance = engine_model(model, gpu, 2 if model.endswith("8B") else 4)
    profile = import_profile(model, gpu, instance.tp)
    assert profile.origin.startswith("aiconfigurator ")
    found = ProfiledEngine(profile).iteration(instance.gpu_params.f_max, (), 32, 32 * 1000.0)
    closed = instance.iteration(instance.gpu_params.f_max, (), 32, 32 * 1000.0)
    assert found.iteration.t_s == pytest.approx(closed.t_s, rel=0.3)
