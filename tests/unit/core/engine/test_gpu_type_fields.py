"""GPU types as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from core.engine.engine_params import FITTED
from core.engine.gpu_type_fields import checked, sheet_of, values_of
from core.engine.gpu_types import SHIPPED, BadGpuType

GOOD = values_of(SHIPPED["L40S-48GB"])


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_values_make_the_same_type(name: str) -> None:
    again = sheet_of(name, values_of(SHIPPED[name]))
    for field in ("peak_flops", "hbm_bw", "link_bw", "fp8_flops", "fp4_flops"):
        assert getattr(again, field) == pytest.approx(getattr(SHIPPED[name], field), rel=1e-8)
    assert (again.nvml, again.assumed, again.like) == (
        SHIPPED[name].nvml,
        SHIPPED[name].assumed,
        SHIPPED[name].like,
    )


def test_values_are_in_the_units_of_data_sheets() -> None:
    assert (GOOD["peak_tflops"], GOOD["memory_gb_per_s"], GOOD["tdp_w"]) == (362.0, 864.0, 350.0)
    assert GOOD["assumed"] == ["min_mhz", "idle_w"]
    assert values_of(SHIPPED["A100-80GB"])["fp8_tflops"] is None
    assert values_of(SHIPPED["B200-180GB"])["fp4_tflops"] == 9000.0
    assert GOOD["fp4_tflops"] is None


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"peak_tflops": None}, "peak_tflops", "None is not a number"),
        ({"peak_tflops": 0}, "peak_tflops", "not above 0"),
        ({"fp4_tflops": -1}, "fp4_tflops", "below 0; leave it empty"),
        ({"memory_gb_per_s": "864"}, "memory_gb_per_s", "is not a number"),
        ({"min_mhz": 5000}, "min_mhz", "above the top clock"),
        ({"like": "H20-96GB"}, "like", "is none of"),
        ({"assumed": ["colour"]}, "assumed", "no such fields: colour"),
        ({"colour": 1}, "colour", "unknown"),
    ],
)
def test_error_has_the_name_that_people_write(changed: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(BadGpuType, match=words) as caught:
        checked(sheet_of("own", GOOD | changed), FITTED)
    assert caught.value.field_name == field


def test_missing_field_is_named() -> None:
    with pytest.raises(BadGpuType, match="missing") as caught:
        sheet_of("own", {name: value for name, value in GOOD.items() if name != "tdp_w"})
    assert caught.value.field_name == "tdp_w"
