from __future__ import annotations

import math
from pathlib import Path

import pytest

from core.engine.engine_model import engine_model
from core.engine.facts import Comparison, Evaluation, Fact, FactsError, evaluate, read_facts, summarise
from core.engine.facts.fixed_batch import at_batch
from core.engine.facts.freesh import PROMPT_TOKENS, loads

HEAD = "source,quantity,condition,value,unit,used"
CELL = "energy per request (row scale 1.00 applied)"


def facts_of(*rows: str) -> list[Fact]:
    return read_facts([HEAD, *rows])


@pytest.fixture(scope="module")
def published(test_data: Path) -> list[Evaluation]:
    with (test_data / "facts.csv").open(encoding="utf-8") as file:
        return evaluate(read_facts(file))


def mape(evaluations: list[Evaluation], source: str, group: str = "") -> float:
    (found,) = (one for one in summarise(evaluations) if one.source == source and one.group == group)
    assert found.mape is not None
    return found.mape


def test_every_fact_is_answered_or_excused_when_the_published_table_is_read(published: list[Evaluation]) -> None:
    assert len(published) == 233
    assert [one.fact.line for one in published] == list(range(2, 235))
    assert all((one.prediction is None) == bool(one.reason) for one in published)
    excused = {one.fact.source for one in published if one.reason}
    assert excused == {"throttLLeM V-D2", "throttLLeM", "DynamoLLM", "DynamoLLM Table V", "FREESH Table 10"}


def test_published_errors_stay_within_their_targets_when_evaluated(published: list[Evaluation]) -> None:
    assert mape(published, "FREESH code", "A100-80GB, TBT") < 0.06
    assert mape(published, "FREESH code", "A100-80GB, power per GPU") < 0.04
    assert mape(published, "throttLLeM III-A") < 0.035
    assert mape(published, "throttLLeM III-C") < 0.035
    assert mape(published, "mu-Serve 2.2") < 0.02
    assert mape(published, "DynaServe Table 1") < 0.02
    for table in ("I", "II", "III"):
        assert mape(published, f"DynamoLLM Table {table}") < 0.11


def test_weak_spots_are_shown_when_the_model_misses(published: list[Evaluation]) -> None:
    assert mape(published, "throttLLeM III-B") > 0.9
    assert mape(published, "FREESH code", "H100-SXM-80GB, power per GPU") > 0.5


def test_row_scale_leaves_no_error_of_the_level_when_a_row_is_scaled() -> None:
    found = evaluate(
        facts_of(
            f"DynamoLLM Table I,{CELL},MM TP4 1.2 GHz H100,4.23,Wh,fit",
            f"DynamoLLM Table I,{CELL},MM TP8 1.2 GHz H100,4.39,Wh,fit",
        )
    )
    assert math.prod(1.0 + one.error for one in found if one.error is not None) == pytest.approx(1.0)
    tenfold = evaluate(
        facts_of(
            f"DynamoLLM Table I,{CELL},MM TP4 1.2 GHz H100,42.3,Wh,fit",
            f"DynamoLLM Table I,{CELL},MM TP8 1.2 GHz H100,43.9,Wh,fit",
        )
    )
    assert [one.error for one in tenfold] == pytest.approx([one.error for one in found])


def test_regret_is_that_of_the_published_energies_when_the_model_chooses_another() -> None:
    choice = "energy-optimal configuration (rel_error = energy regret)"
    rows = [
        f"DynamoLLM Table I,{CELL},MM TP4 1.2 GHz H100,5.0,Wh,fit",
        f"DynamoLLM Table I,{CELL},MM TP8 2.0 GHz H100,4.0,Wh,fit",
        f"DynamoLLM Table I,{choice},MM,TP8@2.0,config,fit",
        f"DynamoLLM Table I,{choice},SS,TP2@1.2,config,fit",
    ]
    found = evaluate(facts_of(*rows))
    assert found[2].kind is Comparison.CHOICE
    assert found[2].prediction == "TP4@1.2"
    assert found[2].error == pytest.approx(0.25)
    assert not found[2].counts
    assert "no energies" in found[3].reason


def test_bound_has_no_error_when_it_is_kept() -> None:
    row = "throttLLeM III-A,power ratio 1410/210 MHz (>2),same,{},ratio (lower bound),fit"
    kept, broken = (evaluate(facts_of(row.format(value)))[0] for value in ("2.0", "9.0"))
    assert kept.error == 0.0
    assert broken.error is not None
    assert broken.error < 0.0
    assert not kept.counts


def test_facts_are_excused_with_a_reason_when_no_reading_covers_them() -> None:
    found = evaluate(
        facts_of(
            "Someone,latency,somewhere,3,ms,validation",
            "FREESH code,TBT,Llama3-70B A100-80GB TP2 SL part a max QPS 0,49,ms,validation",
            f"DynamoLLM Table I,{CELL},Bloom-9B TP4 1.2 GHz H100,5.0,Wh,fit",
            f"DynamoLLM Table III,{CELL},Falcon-180B TP2 1.2 GHz H100,5.0,Wh,fit",
            "DynamoLLM,carbon saving,system level,38,%,system-level target",
            "throttLLeM Table II,max load,Llama9-13B TP1,1,req/s,validation",
            "throttLLeM Table II,max load,Llama2-13B TP0,1,req/s,validation",
            "DynaServe Table 1,prefill-GPU throughput,P0 D32,1,req/s,validation",
            "DynamoLLM Table VI,overhead,T = 1 ms per 1/0 of Llama2-70B weights over 300 GB/s,1,ms,validation",
            "mu-Serve 2.2,temperature,gpt2-large V100,50,C,validation",
        )
    )
    assert all(one.prediction is None and one.reason for one in found)
    assert "not published" in found[1].reason
    assert "Bloom-9B" in found[2].reason
    assert "fit" in found[3].reason
    assert "simulator" in found[4].reason


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "line 1: no column source"),
        (["source,quantity,condition,value,unit"], "no column used"),
        ([HEAD], "no facts"),
        ([HEAD, "a,b,c,x,ms,fit"], "line 2: value: 'x' is not a number"),
        ([HEAD, "a,b,c,nan,ms,fit"], "line 2: value: nan is not finite"),
        ([HEAD, "a,b,c,1,ms,fit", "a,b,,1,ms,fit"], "line 3: condition: empty"),
    ],
)
def test_table_is_refused_by_line_and_column_when_it_cannot_be_read(lines: list[str], says: str) -> None:
    with pytest.raises(FactsError, match=says):
        read_facts(lines)


def test_batch_and_rate_agree_when_an_instance_is_at_steady_state() -> None:
    instance = engine_model("Llama3-70B", "A100-80GB", 4)
    steady = instance.steady_state(2.0, 600, 300, 1410)
    found = at_batch(instance, 1410, steady.batch, 600, 300)
    assert found.ttft_s == pytest.approx(steady.ttft_s)
    assert found.tpot_s == pytest.approx(steady.tpot_s)
    assert found.watts == pytest.approx(steady.power_w)


def test_freesh_loads_equal_the_published_ones_when_derived(test_data: Path) -> None:
    import csv

    with (test_data / "freesh_profiles.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if float(row["max_qps"]) > 0 and float(row["tbt_ms"]) > 5]
    assert len(rows) == len(loads())
    for row in rows:
        load = loads()[row["partition"], row["req"], row["gpu"], int(row["tp"])]
        assert load.concurrency == pytest.approx(float(row["implied_concurrency"]), abs=0.06)
        assert load.output_tokens == pytest.approx(float(row["implied_out_tokens"]), abs=0.06)


def test_freesh_prompts_lie_in_their_classes_when_compared_with_table_4() -> None:
    assert PROMPT_TOKENS["a", "S"] <= 184 <= PROMPT_TOKENS["a", "L"]
    assert PROMPT_TOKENS["b", "S"] <= 25 <= PROMPT_TOKENS["b", "L"]
