"""Predictors of output lengths: seen prompts, boosted trees, tenants' own history."""

import csv
import gzip
import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.ports import RequestFeatures
from core.predictors import length_training
from core.predictors.boosted_lengths import (
    COLUMNS,
    FEATURES,
    HOUR,
    RECORDS,
    TENANT,
    BoostedLengthPredictor,
    LengthRecords,
    LengthTrees,
    record_of,
)
from core.predictors.output_length import MIN_TENANT_HISTORY, TENANT_BUCKETS, WARM_UP, HistoryQuantilePredictor
from core.predictors.seen_prompts import MEMORY, SeenPrompts

pytestmark = pytest.mark.usefixtures("scikit_learn")

PLAIN = RequestFeatures(chat=True, at_s=1_700_000_000.0)


def of_tenant(tenant: int) -> RequestFeatures:
    return replace(PLAIN, tenant_id=tenant)


# -- history -----------------------------------------------------------------------------------------


def test_tenants_own_quantile_is_predicted_when_it_has_history() -> None:
    predictor = HistoryQuantilePredictor()
    for _ in range(WARM_UP + MIN_TENANT_HISTORY):
        predictor.observe("chat", 100, 500, of_tenant(1))
    for _ in range(MIN_TENANT_HISTORY - 1):
        predictor.observe("chat", 100, 20, of_tenant(2))
    assert predictor.predict("chat", 100, None, of_tenant(2)) == 500
    predictor.observe("chat", 100, 20, of_tenant(2))
    assert predictor.predict("chat", 100, None, of_tenant(2)) == 20
    assert predictor.predict("chat", 100, None, of_tenant(3)) == 500


def test_a_service_has_its_own_quantile_when_one_is_set() -> None:
    predictor = HistoryQuantilePredictor(0.5, quantiles={"code": 0.9})
    for output in range(1, 101):
        for service in ("chat", "code"):
            predictor.observe(service, 100, output)
    assert (predictor.predict("chat", 100, None), predictor.predict("code", 100, None)) == (51, 91)
    with pytest.raises(ValueError, match="between 0 and 1"):
        HistoryQuantilePredictor(quantiles={"code": 90})


def test_nothing_is_predicted_when_there_is_neither_history_nor_prior() -> None:
    assert HistoryQuantilePredictor(prior_tokens=None).predict("chat", 100, None) is None


def test_tenants_are_forgotten_when_there_are_too_many() -> None:
    predictor = HistoryQuantilePredictor()
    for tenant in range(TENANT_BUCKETS + 5):
        predictor.observe("chat", 100, 20, of_tenant(tenant))
    assert len(predictor._tenants) == TENANT_BUCKETS


# -- seen prompts ------------------------------------------------------------------------------------


def test_mean_of_answers_is_predicted_when_a_prompt_comes_again() -> None:
    seen = SeenPrompts()
    asked = replace(PLAIN, digest=b"a" * 16)
    assert seen.get(asked.digest) is None
    for output in (10, 20, 60):
        seen.observe("chat", 12, output, asked)
    assert seen.get(b"b" * 16) is None
    known = seen.get(asked.digest)
    assert known is not None
    assert (known.prompt_tokens, known.output_tokens) == (12, pytest.approx(30.0))


def test_nothing_is_remembered_when_a_prompt_has_no_digest() -> None:
    seen = SeenPrompts()
    seen.observe("chat", 12, 30, PLAIN)
    seen.observe("chat", 12, 30)
    assert len(seen) == 0
    assert seen.get(PLAIN.digest) is None


def test_mean_follows_when_a_model_answers_otherwise_now() -> None:
    seen = SeenPrompts()
    asked = replace(PLAIN, digest=b"a" * 16)
    for output in [10] * 500 + [100] * (6 * MEMORY):
        seen.observe("chat", 12, output, asked)
    known = seen.get(asked.digest)
    assert known is not None
    assert known.output_tokens == pytest.approx(100.0, abs=1.0)


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 10))
def test_the_prompts_longest_unseen_are_forgotten_when_the_cache_is_full(keys: list[int], capacity: int) -> None:
    seen = SeenPrompts(capacity)
    for key in keys:
        seen.observe("chat", 1, 1, replace(PLAIN, digest=bytes([key])))
    newest = list(dict.fromkeys(reversed(keys)))[:capacity]
    assert [key for key in range(31) if seen.get(bytes([key]))] == sorted(newest)


# -- trees -------------------------------------------------------------------------------------------


def synthetic(rng: random.Random, n: int, noise: float = 0.3) -> np.ndarray:
    """Records whose outputs hang on a question mark and the tenant, which history by prompt length cannot see."""
    rows = []
    for number in range(n):
        question, tenant = rng.random() < 0.5, rng.choice((3, 8))
        features = replace(PLAIN, at_s=1.7e9 + number, tenant_id=tenant, has_question=question, text_bytes=400)
        output = (40 if question else 400) * (2 if tenant == 8 else 1) * math.exp(rng.gauss(0.0, noise))
        rows.append([*record_of(rng.randrange(90, 110), features), max(1.0, round(output))])
    return np.array(rows)


def test_trees_beat_history_when_outputs_hang_on_features_it_cannot_see() -> None:
    learned = length_training.learn(synthetic(random.Random(1), 1000))
    assert learned.trees is not None
    assert learned.boosted.mae_tokens < 0.5 * learned.history.mae_tokens
    predictor = BoostedLengthPredictor()
    predictor.install("chat", learned.trees)
    asked = replace(PLAIN, tenant_id=8, has_question=True, text_bytes=400)
    assert predictor.predict("chat", 100, None, asked) == pytest.approx(80, rel=0.25)
    assert predictor.predict("chat", 100, None, replace(asked, has_question=False)) == pytest.approx(800, rel=0.25)
    assert predictor.predict("chat", 100, 50, asked) == 50
    assert predictor.predict("code", 100, None, asked) is None


def test_a_higher_quantile_is_learned_when_asked_for() -> None:
    records = synthetic(random.Random(2), 1000)
    above = [
        float((records[:, -1] <= length_training.predict(length_training.fit(records, quantile), records)).mean())
        for quantile in (0.5, 0.9)
    ]
    assert above == pytest.approx([0.5, 0.9], abs=0.07)


def test_trees_are_not_kept_when_history_does_better() -> None:
    """What held in the older records is the other way round in the newest."""
    records = synthetic(random.Random(3), 1000)
    column = FEATURES.index("has_question")
    records[-200:, column] = 1.0 - records[-200:, column]
    learned = length_training.learn(records)
    assert learned.trees is None
    assert learned.boosted.pinball > learned.history.pinball


def test_the_hour_is_learned_only_when_records_span_days() -> None:
    records = synthetic(random.Random(4), 800)
    records[:, -1] = np.where(np.arange(800) % 2, 50.0, 500.0)
    records[:, HOUR] = 1.7e9 + (np.arange(800) % 2) * 43_200.0
    assert HOUR not in length_training.fit(records).feature
    records[:, HOUR] += np.arange(800) // 100 * 86_400.0
    trees = length_training.fit(records)
    assert HOUR in trees.feature
    found = length_training.predict(trees, records[:2])
    assert found == pytest.approx([500.0, 50.0], rel=0.05)


def test_trees_are_right_but_not_kept_when_all_answers_are_alike() -> None:
    """History is as right, and takes less."""
    records = synthetic(random.Random(7), 300)
    records[:, -1] = 16.0
    assert (length_training.predict(length_training.fit(records), records) == 16.0).all()
    learned = length_training.learn(records)
    assert learned.boosted.pinball == learned.history.pinball == 0.0
    assert learned.trees is None


def test_a_new_tenant_is_typical_when_trees_know_others() -> None:
    trees = length_training.fit(synthetic(random.Random(5), 800))
    assert trees.tenants.keys() == {3, 8}
    assert trees.tenants[3] < trees.typical_level < trees.tenants[8]
    record = record_of(100, replace(PLAIN, has_question=True, text_bytes=400))
    middle = trees.tokens(record)
    assert 30 < middle < 110


def test_trees_are_the_same_when_stored_and_read_again() -> None:
    records = synthetic(random.Random(6), 600)
    trees = length_training.fit(records)
    again = LengthTrees.from_json(json.loads(json.dumps(trees.to_json())))
    assert again == trees
    assert (length_training.predict(again, records) == length_training.predict(trees, records)).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [("right", [2, 0, -1]), ("feature", [99, -1, -1]), ("roots", [7]), ("value", [1.0]), ("features", ["other"])],
)
def test_trees_are_refused_when_a_walk_would_not_end(field: str, value: Sequence[object]) -> None:
    stored = LengthTrees(0.0, (0,), (0, -1, -1), (5.0, 0.0, 0.0), (2, -1, -1), (0.0, 1.0, 2.0), {}, 0.0, 1).to_json()
    assert LengthTrees.from_json(stored).log_tokens([6.0]) == 2.0
    assert LengthTrees.from_json(stored).log_tokens([5.0]) == 1.0
    broken = stored | {field: value}
    if field == "right":
        broken["feature"] = [0, 0, -1]  # node 1 would lead back to node 0
    with pytest.raises(ValueError, match=r"node|root|features"):
        LengthTrees.from_json(broken)


def test_learning_is_refused_when_records_are_few_or_broken() -> None:
    with pytest.raises(ValueError, match="too few"):
        length_training.learn(np.ones((20, COLUMNS)))
    with pytest.raises(ValueError, match="finite"):
        length_training.fit(np.full((100, COLUMNS), np.nan))
    with pytest.raises(ValueError, match="whole rows"):
        length_training.records_from_bytes(bytes(8 * (COLUMNS + 1)))


@given(st.integers(1, 40), st.integers(0, 70))
@settings(max_examples=20)
def test_the_newest_records_are_kept_in_order_when_the_ring_is_full(capacity: int, n: int) -> None:
    from core.predictors import boosted_lengths

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boosted_lengths, "RECORDS", capacity)
        records = LengthRecords()
        for number in range(n):
            records.add([0.0] * len(FEATURES), number)
    kept = length_training.records_from_bytes(records.to_bytes())
    assert kept[:, -1].tolist() == list(range(max(0, n - capacity), n))
    assert (len(records), records.seen) == (min(n, capacity), n)
    assert RECORDS > 1000


def test_learning_is_due_when_enough_is_new() -> None:
    predictor = BoostedLengthPredictor(retrain_after=5, min_records=10)
    assert not predictor.due("chat")
    for _ in range(10):
        assert not predictor.due("chat")
        predictor.observe("chat", 100, 20, PLAIN)
    assert predictor.due("chat")
    assert len(predictor.records("chat")) == 10 * COLUMNS * 8
    for _ in range(5):
        assert not predictor.due("chat")
        predictor.observe("chat", 100, 20, PLAIN)
    assert predictor.due("chat")


@given(
    st.builds(
        RequestFeatures,
        chat=st.booleans(),
        at_s=st.floats(0.0, 4e9),
        tenant_id=st.none() | st.integers(1, 2**31),
        text_bytes=st.integers(0, 2**40),
        max_tokens=st.none() | st.integers(1, 10**400),
        last_role=st.none() | st.text(max_size=5),
        temperature=st.none() | st.floats(0.0, 2.0),
        digit_share=st.none() | st.floats(0.0, 1.0),
    )
)
def test_a_record_is_finite_numbers_whatever_the_request(features: RequestFeatures) -> None:
    record = record_of(100, features)
    assert len(record) == len(FEATURES) == COLUMNS - 1
    assert all(math.isfinite(value) for value in record)
    assert record[HOUR] == features.at_s
    assert record[TENANT] == (-1.0 if features.tenant_id is None else features.tenant_id)


def test_boosting_is_no_worse_than_history_when_learned_from_azures_conversations(test_data: Path) -> None:
    """Of prompt lengths alone, which is all that the trace has: most prompts of one length are one application's."""
    with gzip.open(test_data / "azure_llm_2023_conv.csv.gz", "rt") as lines:
        records = np.array(
            [
                [*record_of(int(line["ContextTokens"]), PLAIN), float(line["GeneratedTokens"])]
                for line in csv.DictReader(lines)
            ]
        )
    learned = length_training.learn(records[:9000])
    assert learned.trees is not None
    outputs = records[9000:, -1]
    guessed = length_training.predict(learned.trees, records[9000:])
    boosted = length_training.score(guessed, outputs)
    replayed = length_training.replay_history(records)[9000:]
    history = length_training.score(replayed, outputs)
    assert boosted.mae_tokens < history.mae_tokens
    assert boosted.r2 > max(0.5, history.r2)
    for border in (100, 232, 350, 444):  # DynamoLLM's and FREESH's
        right = [float(((guess >= border) == (outputs >= border)).mean()) for guess in (guessed, replayed)]
        assert right[0] >= right[1] - 0.005
