"""Says how many tokens of a prompt an image takes, by the rule of the model that reads it.

The rules are those of the models' own processors in Hugging Face's transformers: squares of pixels become tokens once
the image has been scaled to what the model takes. Marks around an image, a handful, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_QWEN_AREA = 4 * 28 * 28, 16_384 * 28 * 28  # px, of the published processors of Qwen2-VL and Qwen2.5-VL
_QWEN3_AREA = 65_536, 16_777_216  # px, of Qwen3-VL's
# A token's side in patches is 2, and a patch's 14 or 16 px, where a config leaves them out.
_QWEN = {"qwen2_vl": (14, _QWEN_AREA), "qwen2_5_vl": (14, _QWEN_AREA), "qwen3_vl": (16, _QWEN3_AREA)}
_QWEN["qwen3_vl_moe"] = _QWEN["qwen3_vl"]


@dataclass(frozen=True, slots=True)
class ImageRule:
    """One of three rules: the first whose figure is not 0 holds.

    Attributes:
        fixed_tokens: Of any image: all are brought to one size (LLaVA 1.5, Gemma 3).
        longest_px: Larger images are scaled to this side; each row of tokens ends with one more (Pixtral).
        most_px: Images are scaled to an area of `least_px` to so many pixels (Qwen-VL).
        token_px: The side of the square that becomes a token.
    """

    fixed_tokens: int = 0
    token_px: int = 0
    longest_px: int = 0
    least_px: int = 0
    most_px: int = 0

    @property
    def most_tokens(self) -> int:
        """Returns the tokens of the largest image."""
        if self.fixed_tokens:
            return self.fixed_tokens
        if self.longest_px:
            side = math.ceil(self.longest_px / self.token_px)
            return side * (side + 1)
        return self.most_px // self.token_px**2

    def tokens(self, width_px: int, height_px: int) -> int:
        """Returns the tokens of an image of that size, both at least 1."""
        if self.fixed_tokens:
            return self.fixed_tokens
        side, area = self.token_px, width_px * height_px
        if self.longest_px:
            scale = max(1.0, width_px / self.longest_px, height_px / self.longest_px)
            width, height = math.floor(width_px / scale), math.floor(height_px / scale)
            return max(1, math.ceil(height / side)) * (max(1, math.ceil(width / side)) + 1)
        rows, columns = max(1, round(height_px / side)), max(1, round(width_px / side))
        if rows * columns * side**2 > self.most_px:
            scale = math.sqrt(area / self.most_px)
            rows, columns = (max(1, math.floor(px / scale / side)) for px in (height_px, width_px))
        elif rows * columns * side**2 < self.least_px:
            scale = math.sqrt(self.least_px / area)
            rows, columns = (math.ceil(px * scale / side) for px in (height_px, width_px))
        return min(self.most_tokens, rows * columns)


def image_rule_of(config: Mapping[str, Any] | None) -> ImageRule | None:
    """Returns the rule of a model's config.json; None: it reads no images, or by a rule that is not known here."""
    if not config:
        return None
    kind, vision = str(config.get("model_type", "")), config.get("vision_config") or {}
    if not isinstance(vision, Mapping):
        return None
    try:
        if kind in _QWEN:
            patch_px, (least_px, most_px) = _QWEN[kind]
            side = int(vision.get("patch_size", patch_px)) * int(vision.get("spatial_merge_size", 2))
            return ImageRule(token_px=side, least_px=least_px, most_px=most_px) if side > 0 else None
        if kind == "gemma3":
            return _fixed(int(config.get("mm_tokens_per_image", 256)))
        if kind == "mistral3":
            side = int(vision.get("patch_size", 14)) * int(config.get("spatial_merge_size", 2))
            return _by_rows(side, int(vision.get("image_size", 1540)))
        if kind == "llava":
            return _llava(config, vision)
    except (
        TypeError,
        ValueError,
        ZeroDivisionError,
    ):  # a figure that is none: the engine will not start with it either
        return None
    return None


def _llava(config: Mapping[str, Any], vision: Mapping[str, Any]) -> ImageRule | None:
    if vision.get("model_type") == "pixtral":
        return _by_rows(int(vision.get("patch_size", 16)), int(vision.get("image_size", 1024)))
    side = int(vision.get("image_size", 336)) // int(vision.get("patch_size", 14))
    whole = config.get("vision_feature_select_strategy", "default") == "full"
    clip = vision.get("model_type", "clip_vision_model") == "clip_vision_model"  # it has a token of the whole image
    return _fixed(side * side + (whole and clip))


def _fixed(tokens: int) -> ImageRule | None:
    return ImageRule(fixed_tokens=tokens) if tokens > 0 else None


def _by_rows(side_px: int, longest_px: int) -> ImageRule | None:
    return ImageRule(token_px=side_px, longest_px=longest_px) if side_px > 0 and longest_px > 0 else None
