from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from core.controllers.fleet.explain import least_trusted
from core.engine import measured
from core.engine.corrections import configuration
from core.engine.engine_model import GPUS, UnknownConfiguration, engine_model
from core.engine.engine_params import FITTED
from core.engine.gpu_types import (
    SHIPPED,
    BadGpuType,
    GpuType,
    declare,
    declared,
    gpu_type_of,
    gpu_types,
    named_by_driver,
)
from core.engine.parameter_sets import SETS
from core.engine.profiles import modelled_margins
from core.observations.mode_profile import Lengths, mode_profile
from core.types import Limits, Mode, Source

OWN = replace(SHIPPED["L40S-48GB"], name="L40S-lab", tdp_w=300.0, nvml=("NVIDIA L40S lab",))


@pytest.fixture(autouse=True)
def _nothing_declared() -> Iterator[None]:
    yield
    declare(())


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_types_are_whole_and_planned_with(name: str) -> None:
    one = SHIPPED[name]
    one.check(FITTED)
    assert one.nvml
    params = GPUS[name]
    for field in ("peak_flops", "hbm_bw", "mem_gb", "tdp_w", "f_max", "f_min"):
        assert getattr(params, field) == getattr(one, field), field
    assert params.f_min <= params.f_v < params.f_max
    model = engine_model("Llama3-8B", name, 2)
    slow, fast = (model.iteration(mhz, [(512, 0)], 8, 4096.0) for mhz in (one.f_min, one.f_max))
    assert slow.t_s > fast.t_s
    assert fast.gpu_watts <= one.tdp_w
    assert model.idle_gpu_watts(one.f_max) < one.tdp_w


def test_no_two_types_have_a_drivers_name_in_common() -> None:
    names = [name for one in SHIPPED.values() for name in one.nvml]
    assert len(names) == len(set(names))


def test_margins_are_wide_until_a_type_was_measured() -> None:
    fitted, by_sheet = (modelled_margins(name, "vllm-v1") for name in ("A100-80GB", "H200-SXM-141GB"))
    assert by_sheet.time > fitted.time
    assert by_sheet.power > fitted.power
    assert by_sheet.clock > modelled_margins("H100-SXM-80GB", "vllm-v1").clock


def test_margins_go_by_the_engine_that_a_type_was_measured_with() -> None:
    with_others, measured_with = (modelled_margins("B200-180GB", engine) for engine in ("vllm-v1", "vllm-2025"))
    assert with_others == modelled_margins("H200-SXM-141GB", "vllm-v1")
    assert measured_with == modelled_margins("A100-80GB", "vllm-v1")


def test_faster_memory_shortens_decoding_alone() -> None:
    h100, h200 = (engine_model("Llama3-70B", name, 4) for name in ("H100-SXM-80GB", "H200-SXM-141GB"))
    decode = [model.iteration(1980.0, (), 16, 16_000.0).t_s for model in (h100, h200)]
    assert 1.1 < decode[0] / decode[1] < 4800 / 3350
    prefill = [model.iteration(1980.0, [(8192, 0)]).t_s for model in (h100, h200)]
    assert prefill[0] / prefill[1] == pytest.approx(1.0, abs=0.03)
    assert h200.kv_capacity_tokens > 2 * h100.kv_capacity_tokens


def test_declared_types_are_planned_with_and_what_was_computed_before_is_forgotten() -> None:
    with pytest.raises(UnknownConfiguration, match="L40S-lab"):
        engine_model("Llama3-8B", OWN.name, 1)
    assert declare([OWN])
    assert not declare([OWN])
    assert named_by_driver("NVIDIA L40S lab") == OWN
    assert OWN.name in GPUS
    assert engine_model("Llama3-8B", OWN.name, 1).gpu_params.tdp_w == 300.0
    assert declare([replace(OWN, tdp_w=250.0)])
    assert engine_model("Llama3-8B", OWN.name, 1).gpu_params.tdp_w == 250.0
    assert declare(())
    with pytest.raises(UnknownConfiguration):
        engine_model("Llama3-8B", OWN.name, 1)


def test_shipped_name_keeps_its_meaning_when_it_is_declared() -> None:
    assert not declare([replace(OWN, name="L40S-48GB", tdp_w=1.0)])
    assert declared() == ()
    assert gpu_types()["L40S-48GB"].tdp_w == 350.0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hbm_bw": 0.0}, "hbm_bw"),
        ({"tdp_w": float("nan")}, "tdp_w"),
        ({"f_min": 9e9}, "f_min"),
        ({"idle_w": 300.0}, "idle_w"),
        ({"name": "A/B"}, "name"),
        ({"name": ""}, "name"),
        ({"like": "H200-SXM-141GB"}, "like"),
        ({"assumed": ("colour",)}, "assumed"),
    ],
)
def test_type_is_refused_when_no_gpu_has_it(changes: dict[str, object], field: str) -> None:
    with pytest.raises(BadGpuType) as refused:
        replace(OWN, **changes).check(FITTED)  # type: ignore[arg-type]
    assert refused.value.field_name == field


@pytest.mark.parametrize(
    ("changes", "field"), [({"colour": "green"}, "colour"), ({"hbm_bw": "fast"}, "hbm_bw"), ({"tdp_w": True}, "tdp_w")]
)
def test_row_of_a_file_is_refused_when_a_field_is_wrong(changes: dict[str, object], field: str) -> None:
    row = {name: getattr(OWN, name) for name in GpuType.__dataclass_fields__ if name != "name"}
    assert gpu_type_of(OWN.name, row) == OWN
    with pytest.raises(BadGpuType) as refused:
        gpu_type_of(OWN.name, {**row, **changes})
    assert refused.value.field_name == field


def test_row_is_refused_when_a_field_is_missing() -> None:
    with pytest.raises(BadGpuType, match="hbm_bw"):
        gpu_type_of("X", {"peak_flops": 1e12})


def test_a_type_multiplies_at_4_bit_when_its_data_sheet_says_so() -> None:
    """Whatever its name: an own type is planned as a shipped one of the same figures is."""
    b200, pro = SHIPPED["B200-180GB"], SHIPPED["RTX-PRO-6000-96GB"]
    declare([replace(b200, name="Ours-180GB"), replace(pro, name="B200-without", fp4_flops=0.0)])
    first = SETS[1]
    assert [first.gpu(name).fp4 for name in ("Ours-180GB", pro.name, "B200-without", "H200-SXM-141GB")] == [  # type: ignore[union-attr]
        True,
        True,
        False,
        False,
    ]


def test_figures_say_so_when_they_are_by_a_data_sheet_alone() -> None:
    lengths = Lengths(500.0, 100.0)
    for name, engine, source in (
        ("A100-80GB", "vllm-2025", Source.MODELLED),
        ("H200-SXM-141GB", "vllm-2025", Source.DATA_SHEET),
        ("B200-180GB", "vllm-2025", Source.MODELLED),
        ("B200-180GB", "vllm-v1", Source.DATA_SHEET),  # the second set alone was fitted to it
    ):
        instance = engine_model("Llama3-8B", name, 1, engine)
        assert instance.source is source, name
        assert instance.iteration(1000.0, decodes=4, context_tokens=400.0).source is source
        assert mode_profile("Llama3-8B", engine, Mode(name, 1), lengths, Limits()).source is source
        assert measured.basis(configuration("Llama3-8B", name, 1, engine)) == measured.Basis(source, None)
    assert least_trusted([Source.MODELLED, Source.DATA_SHEET, Source.MEASURED]) is Source.DATA_SHEET
