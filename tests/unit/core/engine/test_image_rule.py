"""Tokens of images against counts that the models' own processors publish."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.engine.image_rule import ImageRule, image_rule_of

QWEN = {"model_type": "qwen2_5_vl", "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}
PIXTRAL = {"model_type": "llava", "vision_config": {"model_type": "pixtral", "patch_size": 16, "image_size": 1024}}
MISTRAL = {"model_type": "mistral3", "spatial_merge_size": 2, "vision_config": {"patch_size": 14, "image_size": 1540}}
LLAVA = {"model_type": "llava", "vision_config": {"patch_size": 14, "image_size": 336}}


@pytest.mark.parametrize(
    ("config", "size", "tokens"),
    [
        (QWEN, (224, 224), 64),  # 8 x 8 squares of 28 px
        (QWEN, (1, 1), 4),  # scaled up to the least area
        (QWEN, (2044, 1372), 73 * 49),  # the photograph of Qwen's own examples: 3,577
        (QWEN, (28 * 200, 28 * 200), 128 * 128),  # scaled down to the largest area
        ({"model_type": "qwen3_vl"}, (320, 320), 100),  # squares of 32 px, by default
        (LLAVA, (50, 5000), 576),
        (LLAVA | {"vision_feature_select_strategy": "full"}, (50, 50), 577),
        ({"model_type": "gemma3"}, (9, 9), 256),
        (PIXTRAL, (1024, 1024), 64 * 65),  # each row ends with a token of its own
        (PIXTRAL, (2048, 1024), 32 * 65),
        (MISTRAL, (1540, 28), 56),
    ],
)
def test_image_takes_the_tokens_of_its_models_rule(config: dict[str, Any], size: tuple[int, int], tokens: int) -> None:
    rule = image_rule_of(config)
    assert rule is not None
    assert rule.tokens(*size) == tokens


@pytest.mark.parametrize(
    "config",
    [
        *(None, {}, {"model_type": "llama"}, {"model_type": "gemma3_text"}),
        {"model_type": "llava", "vision_config": "none"},
        {"model_type": "llava", "vision_config": {"patch_size": 0}},
        {"model_type": "qwen2_vl", "vision_config": {"patch_size": "x"}},
        {"model_type": "mistral3", "vision_config": {"image_size": 0}},
    ],
)
def test_no_rule_is_known_when_a_model_reads_no_images_or_its_figures_are_none(config: dict[str, Any] | None) -> None:
    assert image_rule_of(config) is None


@given(
    config=st.sampled_from([QWEN, {"model_type": "qwen3_vl"}, PIXTRAL, MISTRAL, LLAVA]),
    size=st.tuples(st.integers(1, 100_000), st.integers(1, 100_000)),
)
def test_no_image_takes_more_than_the_most(config: dict[str, Any], size: tuple[int, int]) -> None:
    rule = image_rule_of(config)
    assert isinstance(rule, ImageRule)
    assert 1 <= rule.tokens(*size) <= rule.most_tokens
