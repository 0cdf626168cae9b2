from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from core.engine.engine_params import GPUS
from greenserve.cli import cli
from pools.model_files.hugging_face import shape_of_document
from tests.fakes.hub import LLAMA, Hub

ONE = ("--model", "Llama3-70B", "--gpu", "A100-80GB", "--tp", "4")


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["engine", *arguments], input=stdin)


def question(**fields: object) -> str:
    return json.dumps({"model": "Llama3-70B", "gpu": "A100-80GB", "tp": 4, "decode": [100]} | fields)


def test_predictions_equal_the_reference_when_given_the_golden_batches(test_data: Path) -> None:
    golden = test_data / "engine_golden.jsonl"
    rows = [json.loads(line) for line in golden.read_text().splitlines()]
    shown = run("predict", "--input", str(golden))
    assert shown.exit_code == 0
    answers = [json.loads(line) for line in shown.output.splitlines()]
    assert len(answers) == len(rows)
    for answer, row in zip(answers, rows, strict=True):
        for name in ("t_s", "watts", "gpu_watts", "f_eff_mhz"):
            assert answer[name] == pytest.approx(row["expect"][name], rel=1e-6)
        assert answer["kv_capacity_tokens"] == pytest.approx(row["expect"]["kv_capacity_tokens"], abs=0.05)
        assert answer["energy_j"] == pytest.approx(answer["watts"] * answer["t_s"])
        assert answer["fits"] == (row["expect"]["kv_capacity_tokens"] > 0)
        assert answer["source"] == "modelled"


def test_flags_and_lines_agree_when_they_ask_the_same() -> None:
    flags = ("--mhz", "1200", "--prefill", "512:0,64:1000", "--decode", "700,2x900", "--engine", "trtllm")
    by_flags = run("predict", *ONE, *flags, "--json")
    fields = {"mhz": 1200, "prefill": [[512, 0], [64, 1000]], "decode": [700, 900, 900], "engine": "trtllm"}
    by_line = run("predict", "--input", "-", stdin=question(**fields))
    assert json.loads(by_flags.output) == json.loads(by_line.output)


def test_defaults_are_the_top_clock_and_vllm_when_left_out() -> None:
    named = run("predict", *ONE, "--decode", "8x500", "--mhz", "1410", "--engine", "vllm-v1", "--json")
    assert json.loads(run("predict", *ONE, "--decode", "8x500", "--json").output) == json.loads(named.output)
    assert json.loads(named.output)["f_eff_mhz"] == 1410.0


@pytest.mark.parametrize(
    ("gpu", "words"), [("H200-SXM-141GB", "modelled by data sheet, within 25%"), ("A100-80GB", "modelled, within 10%")]
)
def test_source_says_when_the_gpu_is_known_by_its_data_sheet(gpu: str, words: str) -> None:
    assert words in run("predict", "--model", "Llama3-8B", "--gpu", gpu, "--tp", "1", "--decode", "8x1000").output


def test_configuration_is_answered_all_the_same_when_it_does_not_fit() -> None:
    shown = run("predict", "--model", "Llama3-70B", "--gpu", "A100-80GB", "--tp", "1", "--decode", "100", "--json")
    answer = json.loads(shown.output)
    assert answer["fits"] is False
    assert answer["kv_capacity_tokens"] == 0.0
    assert answer["t_s"] > 0.0
    text = run("predict", "--model", "Llama3-70B", "--gpu", "A100-80GB", "--tp", "1", "--decode", "100")
    assert "does not fit" in text.output


def test_batch_is_said_not_to_fit_when_the_cache_is_too_small_for_it() -> None:
    small = ("--model", "Llama2-13B", "--gpu", "A100-40GB", "--tp", "1")
    for asked, fits in (
        (("--decode", "11x1000"), True),
        (("--decode", "13x1000"), False),
        (("--prefill", "9000"), True),
    ):
        answer = json.loads(run("predict", *small, *asked, "--json").output)
        assert answer["fits"] is True
        assert answer["batch_fits"] is fits
    assert "too few for this batch" in run("predict", *small, "--decode", "13x1000").output


def test_table_is_shown_when_json_is_not_asked_for() -> None:
    shown = run("predict", *ONE, "--prefill", "8192")
    assert shown.exit_code == 0
    hot = run("predict", "--model", "Llama2-13B", "--gpu", "A100-80GB", "--tp", "1", "--prefill", "8192")
    assert "throttled at the TDP" in hot.output
    assert {"time", "power", "clock", "energy", "source"} <= {line.split()[0] for line in shown.output.splitlines()}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"model": "Llama9"}, "model"),
        ({"gpu": "T4"}, "gpu"),
        ({"gpu": None}, "gpu"),
        ({"engine": "ollama"}, "engine"),
        ({"tp": 0}, "tp"),
        ({"tp": 2.5}, "tp"),
        ({"tp": True}, "tp"),
        ({"tp": 10**400}, "tp"),
        ({"decode": [10**400]}, "decode"),
        ({"prefill": [[10**12, 0]]}, "prefill"),
        ({"mhz": -1}, "mhz"),
        ({"mhz": float("nan")}, "mhz"),
        ({"mhz": "fast"}, "mhz"),
        ({"prefill": [[0, 5]]}, "prefill"),
        ({"prefill": [512]}, "prefill"),
        ({"prefill": "512:0"}, "prefill"),
        ({"decode": [-1]}, "decode"),
        ({"decode": [float("inf")]}, "decode"),
        ({"decode": [1.5]}, "decode"),
        ({"decode": []}, "decode"),
        ({"prefil": [[5, 0]]}, "prefil"),
    ],
)
def test_bad_line_is_named_with_its_field_when_it_cannot_be_used(fields: dict[str, object], names: str) -> None:
    shown = run("predict", "--input", "-", stdin=f"{question()}\n\n{question(**fields)}\n")
    assert shown.exit_code == 1
    assert f"line 3: {names}: " in shown.output
    assert "Traceback" not in shown.output
    assert json.loads(shown.output.splitlines()[0])["t_s"] > 0.0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: line: not JSON"),
        ("[1]", "line 1: line: not a JSON object"),
        ('{"tp": ' + "9" * 5000 + "}", "line 1: line: not JSON"),
    ],
)
def test_line_is_refused_when_it_is_no_json_object(line: str, says: str) -> None:
    shown = run("predict", "--input", "-", stdin=line)
    assert shown.exit_code == 1
    assert says in shown.output


def test_input_is_refused_in_one_line_when_it_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_bytes(b"\xff\xfe\x00")
    shown = run("predict", "--input", str(file))
    assert shown.exit_code == 1
    assert "not UTF-8" in shown.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--tp"),
        (ONE, "nothing to do"),
        ((*ONE, "--decode", "x"), "--decode"),
        ((*ONE, "--decode", "99999999x5"), "at most"),
        ((*ONE, "--prefill", "0:5"), "--prefill"),
        ((*ONE, "--prefill", "a:5"), "--prefill"),
        ((*ONE, "--decode", "5", "--mhz", "nan"), "--mhz"),
    ],
)
def test_flag_is_named_when_it_cannot_be_used(arguments: tuple[str, ...], says: str) -> None:
    shown = run("predict", *arguments)
    assert shown.exit_code == 2
    assert says in shown.output
    assert "Traceback" not in shown.output


def test_input_is_refused_beside_flags_when_both_are_given() -> None:
    assert run("predict", "--input", "-", "--tp", "4", stdin=question()).exit_code == 2


def test_command_needs_no_django_database_or_redis_when_it_runs() -> None:
    code = (
        "import sys; from greenserve.cli import cli;"
        "cli.main(['engine', 'predict', '--model', 'Llama3-8B', '--gpu', 'A100-80GB', '--tp', '1', '--decode', '5'],"
        " standalone_mode=False);"
        "assert not {'django', 'redis', 'psycopg', 'celery', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


PROFILE = """model,gpu,tp,mhz,engine,prefill_tokens,batch,context_tokens,t_s,watts
Llama3-70B,A100-80GB,4,1410,vllm-v1,0,8,800,0.031,900
Llama3-70B,A100-80GB,4,1410,vllm-v1,0,16,1600,0.034,950
"""


def test_profile_answers_first_when_it_is_given(tmp_path: Path) -> None:
    file = tmp_path / "profile.csv"
    file.write_text(PROFILE)
    lines = [question(decode=[100] * 8), question(decode=[100] * 12), question(tp=8)]
    shown = run("predict", "--input", "-", "--profile", str(file), stdin="\n".join(lines))
    answers = [json.loads(line) for line in shown.output.splitlines()]
    assert [answer["source"] for answer in answers] == ["measured", "interpolated", "modelled"]
    assert (answers[0]["t_s"], answers[0]["watts"]) == (pytest.approx(0.031), pytest.approx(900))
    assert 0.031 < answers[1]["t_s"] < 0.034
    assert answers[2]["margin"] == {"time": 0.1, "power": 0.1, "clock": 0.1}
    assert "measured" in run("predict", *ONE, "--decode", "8x100", "--profile", str(file)).output
    file.write_text(PROFILE.replace(",900\n", ",\n").replace(",950\n", ",\n"))
    timed = json.loads(run("predict", *ONE, "--decode", "8x100", "--profile", str(file), "--json").output)
    assert (timed["source"], timed["watts_source"], timed["t_s"]) == ("measured", "modelled", pytest.approx(0.031))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (PROFILE.replace("950", "nan"), "row 2: watts: nan"),
        (PROFILE.replace("16,1600", "8,800"), "the same"),
        ("", "no"),
    ],
)
def test_profile_is_refused_in_one_line_when_it_is_bad(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "profile.csv"
    file.write_text(content)
    shown = run("predict", *ONE, "--decode", "5", "--profile", str(file))
    assert shown.exit_code == 1
    assert says in shown.output
    assert len(shown.output.strip().splitlines()) == 1
    assert run("predict", *ONE, "--decode", "5", "--profile", str(tmp_path / "none.csv")).exit_code == 1


FACTS = """source,quantity,condition,value,unit,used
mu-Serve 2.2,power 1300 MHz,gpt2-large V100,214,W,fit
DynamoLLM,carbon saving,system level,38,%,system-level target
"""


def test_facts_are_printed_with_errors_and_excuses_when_given_a_table(tmp_path: Path) -> None:
    file = tmp_path / "facts.csv"
    file.write_text(FACTS)
    found = json.loads(run("facts", str(file), "--json").output)
    assert [row["evaluated"] for row in found["facts"]] == [True, False]
    assert found["facts"][0]["error"] == pytest.approx(found["facts"][0]["prediction"] / 214 - 1)
    assert found["sources"][0]["mape"] == pytest.approx(abs(found["facts"][0]["error"]))
    text = run("facts", str(file)).output
    assert "1 of 2 facts evaluated" in text
    assert "carbon saving" in text
    assert "| mu-Serve 2.2 |" in run("facts", str(file), "--markdown").output


def test_facts_command_names_the_line_when_the_table_is_bad(tmp_path: Path) -> None:
    file = tmp_path / "facts.csv"
    file.write_text(FACTS.replace("214", "many"))
    shown = run("facts", str(file))
    assert shown.exit_code == 1
    assert "line 2: value: 'many' is not a number" in shown.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def test_model_is_predicted_by_the_configuration_of_a_folder(folder: Path) -> None:
    asked = ("--gpu", "A100-80GB", "--tp", "1", "--decode", "100")
    shown = run("predict", "--model", str(folder), *asked, "--json")
    key = shape_of_document(LLAMA).key
    assert shown.output == run("predict", "--model", key, *asked, "--json").output
    table = run("predict", "--model", str(folder), *asked).output
    assert f"{folder} on 1 x A100-80GB" in table


def test_prediction_is_refused_when_the_place_has_no_configuration(tmp_path: Path) -> None:
    refused = run("predict", "--model", str(tmp_path), "--gpu", "A100-80GB", "--tp", "1", "--decode", "100")
    assert refused.exit_code == 2
    assert "--model: config:" in refused.output
    assert "no folder with a config.json" in refused.output


def test_model_command_shows_the_shape_and_the_gpus_that_have_room_for_it(folder: Path) -> None:
    shown = run("model", str(folder), "--gpu", "V100-16GB", "--gpu", "L40S-48GB")
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert "parameters   8.03 billion" in lines
    assert "weights      16.1 GB (16 bits)" in lines
    assert "KV cache     131,072 bytes a token (16 bits)" in lines
    assert f"shape        {shape_of_document(LLAMA).key}" in lines
    (fit,) = (line for line in lines if line.startswith("L40S-48GB"))
    assert fit.split()[1:] == ["193,858", "510,249", "1,143,031", "2,408,595"]
    (misfit,) = (line for line in lines if line.startswith("V100-16GB"))
    assert misfit.split()[1] == "-"
    assert "16 GB of weights, and 1 x V100-16GB have" in misfit
    assert "tokenizer" not in shown.output


def test_model_command_answers_programs(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    found = json.loads(run("model", str(folder), "--gpu", "L40S-48GB", "--json", "--fp8-kv-cache").output)
    assert found["shape"]["parameters"] == 8_030_261_248
    assert found["shape"]["kv_bits"] == 8.0
    assert found["tokenizer"] == str(folder / "tokenizer.json")
    assert [(one["tp"], one["fits"]) for one in found["fits"]] == [(1, True), (2, True), (4, True), (8, True)]
    shown = run("model", str(folder / "config.json"), "--gpu", "L40S-48GB").output
    assert f"{folder / 'tokenizer.json'}: set it in the card" in shown


def test_model_command_knows_all_types_and_the_names_of_the_engine_model() -> None:
    found = json.loads(run("model", "Llama3-70B", "--json").output)
    assert {one["gpu"] for one in found["fits"]} == set(GPUS)
    assert found["tokenizer"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "PLACE: config: 'nowhere' is no folder"),
        (("Llama3-8B", "--gpu", "abacus"), "--gpu: unknown gpu 'abacus'"),
        (("Llama3-8B", "--engine", "abacus"), "--engine: unknown engine 'abacus'"),
    ],
)
def test_model_command_refuses_what_it_does_not_know(arguments: tuple[str, ...], words: str) -> None:
    refused = run("model", *arguments)
    assert refused.exit_code == 2
    assert words in refused.output


def test_repository_of_the_hub_is_predicted_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    assert run("model", "acme/tuned", "--gpu", "L40S-48GB").exit_code == 0
    assert run("predict", "--model", "acme/tuned", "--gpu", "L40S-48GB", "--tp", "1", "--decode", "9").exit_code == 0
    assert hub.asked == ["https://huggingface.co/acme/tuned/resolve/main/config.json"] * 2
