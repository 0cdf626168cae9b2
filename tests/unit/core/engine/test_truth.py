"""The frozen engine model against measured tables: what docs/fidelity.md says of it holds."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from core.engine.engine_model import EngineModel, engine_model, gpu
from core.engine.engine_vector import iterations
from core.engine.parameter_sets import SETS, set_of
from core.engine.truth import clock_sweep, nodes, serving
from core.engine.truth.board import BadTable, Board
from greenserve.commands.truth import truth
from pools.model_files.hugging_face import shape_from

LLAMA, GPT_OSS = "Llama3-8B", "36x2880.q64x64.kv8.v201088.p116789048640.e128x4x36x114661785600.win128x18.x4_25.n13"
ROW = {
    "model": "acme/model",
    "task": "lm-arena-chat",
    "gpu": "H100",
    "num_gpus": "1",
    "ep": "1",
    "dp": "1",
    "mean_batch": "16",
    "mean_output_tokens": "500",
    "mean_power_w": "400",
    "joules_per_output_token": "0.2",
    "itl_p50_ms": "8",
}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def measured(test_data: Path) -> Board:
    def shape_of(name: str) -> str:
        folder = test_data / "model_configs" / name.replace("/", "__")
        if not folder.is_dir():
            raise ValueError("no config.json")
        return shape_from(str(folder)).key

    return serving.score(rows(test_data / "mlenergy_text.csv"), shape_of)


def test_serving_errors_are_those_of_the_document(measured: Board) -> None:
    scores = measured.scores()["all"]
    assert scores["itl_p50_ms"].rows == 389
    assert scores["itl_p50_ms"].mape < 0.09  # the aim is 0.08: docs/fidelity.md says where the rest lies
    assert scores["power_w"].mape < 0.067  # the aim is 0.06
    assert scores["joules_per_token"].mape < 0.08
    assert all(abs(one.bias) < 0.01 for one in scores.values())
    by_gpu = measured.scores("gpu")
    assert by_gpu["H100"]["itl_p50_ms"].mape < 0.066
    assert set(measured.scores("kind")) == {"dense", "MoE", "MLA"}


def test_rows_that_cannot_be_predicted_are_refused_with_a_reason(measured: Board) -> None:
    assert sum(measured.refusals.values()) == 72
    assert measured.refusals["attention by data parallelism is not modelled"] == 16


def test_locked_clocks_of_a_v100_are_followed_and_the_best_one_is_chosen(test_data: Path) -> None:
    shape = shape_from(str(test_data / "model_configs" / "mistralai__Mistral-7B-Instruct-v0.3")).key
    board = clock_sweep.score(
        rows(test_data / "v100_clock_sweep.csv"), lambda _: shape, "mistralai/Mistral-7B", "V100-PCIe-32GB"
    )
    scores = board.scores()["all"]
    assert scores["power_w"].mape < 0.08
    assert scores["duration_s"].mape < 0.06
    assert len(board.choices) == 4
    assert all(choice.regret <= 0.03 for choice in board.choices)


def test_loaded_idle_power_of_nodes_is_met(test_data: Path) -> None:
    scores = nodes.score(rows(test_data / "powertrace_nodes.csv")).scores("gpu")
    assert {name: one["idle_w"].rows for name, one in scores.items()} == {"A100": 7, "H100": 9}
    assert all(one["idle_w"].mape < 0.04 for one in scores.values())


def test_perfect_rows_have_no_error() -> None:
    (first,) = serving.score([ROW], lambda _: LLAMA).rows
    exact = {
        "itl_p50_ms": f"{first.values['itl_p50_ms'][1]!r}",
        "mean_power_w": f"{first.values['power_w'][1]!r}",
        "joules_per_output_token": f"{first.values['joules_per_token'][1]!r}",
    }
    for score in serving.score([ROW | exact], lambda _: LLAMA).scores()["all"].values():
        assert (score.mape, score.bias) == (0.0, 0.0)


def test_small_batches_are_shown_and_in_no_score() -> None:
    board = serving.score([ROW | {"mean_batch": "2"}], lambda _: LLAMA)
    assert board.scores() == {}
    assert board.document()["details"][0]["counts"] is False


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu": "TPU"}, "unknown gpu 'TPU'"),
        ({"dp": "2"}, "data parallelism"),
        ({"model": "acme/none"}, "acme/none: no config"),
    ],
)
def test_row_is_refused_when_the_model_knows_nothing_of_it(changes: dict[str, str], words: str) -> None:
    def shape_of(name: str) -> str:
        if name.endswith("none"):
            raise ValueError("no config")
        return LLAMA

    (row,) = serving.score([ROW | changes], shape_of).rows
    assert words in row.refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mean_batch": "many"}, "line 2: mean_batch: 'many' is not a number"),
        ({"itl_p50_ms": "0"}, "line 2: itl_p50_ms: 0 is not above 0"),
        ({"gpu": ""}, "line 2: gpu: missing"),
    ],
)
def test_table_is_refused_when_a_cell_is_wrong(changes: dict[str, str], words: str) -> None:
    with pytest.raises(BadTable, match=words):
        serving.score([ROW | changes], lambda _: LLAMA)


@pytest.mark.parametrize(
    ("kind", "row", "words"),
    [
        ("nodes", {"config": "what"}, "is not MODEL-GPU_tpN"),
        ("nodes", {"config": "llama-a100_tp1"}, "no such column"),
        ("clock-sweep", {"sm_clock_mhz": "900", "phase": "sleep", "prompt_tokens": "1", "output_tokens": "1"}, "phase"),
    ],
)
def test_command_names_line_and_column_when_a_table_is_wrong(
    tmp_path: Path, kind: str, row: dict[str, str], words: str
) -> None:
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)
    folder = tmp_path / "mistralai__Mistral-7B-Instruct-v0.3"
    folder.mkdir()
    shape = {"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
    (folder / "config.json").write_text(
        json.dumps(shape | {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32768})
    )
    found = CliRunner().invoke(truth, [str(table), "--format", kind, "--configs", str(tmp_path)])
    assert found.exit_code == 1
    assert "line 2" in found.output
    assert words in found.output


def test_command_prints_scores_and_json(test_data: Path) -> None:
    given = [
        str(test_data / "v100_clock_sweep.csv"),
        "--format",
        "clock-sweep",
        "--configs",
        str(test_data / "model_configs"),
    ]
    shown = CliRunner().invoke(truth, given)
    assert shown.exit_code == 0, shown.output
    assert "power_w" in shown.output
    document = json.loads(CliRunner().invoke(truth, [*given, "--json"]).output)
    assert document["scores"]["power_w"]["rows"] == 34
    assert {one["series"] for one in document["choices"]} == {row["series"] for row in document["details"]}


# -- parameter set 2 -------------------------------------------------------------------------------


def test_engines_keep_the_set_that_their_name_is_in() -> None:
    assert set_of("vllm-v1") is SETS[1]
    assert set_of("vllm-2025") is SETS[2]
    assert set_of("none") is None
    assert engine_model(LLAMA, "H100-SXM-80GB", 1).constants.second is None


@pytest.mark.parametrize("model", [LLAMA, GPT_OSS])
def test_second_set_stays_linear_in_contexts_at_a_batch(model: str) -> None:
    instance = EngineModel(model, "B200-180GB", 1, "vllm-2025")
    low, middle, high = (instance.iteration(900.0, (), 32, 32 * each) for each in (2_000.0, 6_000.0, 10_000.0))
    assert middle.t_s - low.t_s == pytest.approx(high.t_s - middle.t_s, rel=1e-9)
    assert middle.energy_j - low.energy_j == pytest.approx(high.energy_j - middle.energy_j, rel=1e-9)


def test_windows_bound_what_is_read() -> None:
    full = EngineModel(GPT_OSS.replace(".win128x18", ""), "B200-180GB", 1, "vllm-2025")
    windowed = EngineModel(GPT_OSS, "B200-180GB", 1, "vllm-2025")
    short, long = ((), 32, 32 * 100.0), ((), 32, 32 * 50_000.0)
    assert windowed.iteration(1965.0, *short).t_s == full.iteration(1965.0, *short).t_s
    assert windowed.iteration(1965.0, *long).t_s < 0.8 * full.iteration(1965.0, *long).t_s


def test_caches_are_copied_to_gpus_beyond_the_heads() -> None:
    eight = EngineModel("Qwen3-30B-A3B", "H100-SXM-80GB", 8, "vllm-2025")
    four = EngineModel("Qwen3-30B-A3B", "H100-SXM-80GB", 4, "vllm-2025")
    assert eight.constants.kv_bytes == 2 * four.constants.kv_bytes  # it has four heads of keys and values


def test_experts_cut_over_gpus_wait_for_the_busiest() -> None:
    alone = EngineModel(GPT_OSS, "H100-SXM-80GB", 4, "vllm-2025")
    cut = EngineModel(GPT_OSS, "H100-SXM-80GB", 4, "vllm-2025", ep=4)
    assert cut.iteration(1980.0, (), 16, 16_000.0).t_s > alone.iteration(1980.0, (), 16, 16_000.0).t_s


def test_scalar_of_arrays_throttles_as_the_scalar_form_does() -> None:
    instance = EngineModel(LLAMA, "A100-80GB", 1, "vllm-2025")
    one = instance.iteration(1410.0, [(8192, 0)], 128, 128_000.0)
    assert one.f_eff_mhz < 1410.0
    same = iterations(instance, 1410.0, prefill_tokens=8192, decodes=128, context_tokens=128_000.0)
    assert float(same.t_s) == pytest.approx(one.t_s, rel=1e-9)
    assert float(same.gpu_watts) <= instance.gpu_params.cap_w


def test_v100_of_16_gb_is_the_measured_card_with_half_the_memory_and_set_1_has_its_own() -> None:
    measured = SETS[2].fitted["V100-PCIe-32GB"]
    assert SETS[2].fitted["V100-16GB"] == replace(measured, name="V100-16GB", mem_gb=gpu("V100-16GB").mem_gb)
    assert replace(SETS[2].engine("vllm-2025", "V100-16GB"), name="") == replace(
        SETS[2].engine("vllm-2025", "V100-PCIe-32GB"), name=""
    )
    assert SETS[1].fitted["V100-16GB"].c_clk == 178
    assert EngineModel("gpt2-large", "V100-16GB", 1, "eager-2023-a100").gpu_params is SETS[1].fitted["V100-16GB"]


def test_other_v100_are_like_it_in_their_own_ranges_of_clock_and_power() -> None:
    fitted, sxm = SETS[2].fitted["V100-16GB"], SETS[2].gpu("V100-SXM-16GB")
    assert sxm is not None
    assert (sxm.tdp_w, sxm.f_max) == (300, 1530)
    assert sxm.c_clk == pytest.approx(fitted.c_clk * 300 / 250)
    assert sxm.f_v == pytest.approx(fitted.f_v * 1530 / 1380)
    assert (sxm.v_min, sxm.e_flop_pj) == (fitted.v_min, fitted.e_flop_pj)


def test_eager_engine_of_set_2_has_the_overheads_of_set_1s() -> None:
    first, second = SETS[1].engine("eager-2023-a100", ""), SETS[2].engine("eager-2023", "V100-16GB")
    assert replace(first, name="") == replace(second, name="")
    old, new = (EngineModel("gpt2-large", "V100-16GB", 1, name) for name in ("eager-2023-a100", "eager-2023"))
    assert new.constants.second is not None
    decoding = (1380.0, (), 1, 512.0)
    assert new.iteration(*decoding).t_s == pytest.approx(old.iteration(*decoding).t_s, rel=1e-12)  # launches bound it
    assert new.iteration(*decoding).gpu_watts < 0.6 * old.iteration(*decoding).gpu_watts


@pytest.mark.parametrize(("engine", "best"), [("eager-2023-a100", (200.0, 500.0)), ("eager-2023", (850.0, 950.0))])
def test_an_eager_token_is_cheapest_where_the_sets_v100_says(engine: str, best: tuple[float, float]) -> None:
    instance = EngineModel("gpt2-large", "V100-16GB", 1, engine)
    clocks = [200.0 + 50.0 * n for n in range(23)]
    cheapest = min(clocks, key=lambda mhz: instance.iteration(mhz, (), 8, 8 * 350.0).energy_j)
    assert best[0] <= cheapest <= best[1]


@pytest.mark.parametrize(("mhz", "published_w", "modelled_w"), [(1300.0, 214.0, 109.0), (800.0, 120.0, 72.0)])
def test_published_power_of_mu_serves_v100_is_missed_by_set_2_as_the_document_says(
    mhz: float, published_w: float, modelled_w: float
) -> None:
    watts = EngineModel("gpt2-large", "V100-16GB", 1, "eager-2023").iteration(mhz, (), 8, 8 * 512.0).gpu_watts
    assert watts == pytest.approx(modelled_w, abs=0.5)
    assert watts < 0.65 * published_w
