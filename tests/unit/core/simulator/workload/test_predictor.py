import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.simulator.fields import ScenarioError
from core.simulator.workload import LengthPredictor, read_predictor
from core.simulator.workload.predictor import Confusion, typical_lengths
from tests.unit.core.simulator.workload.helpers import section

BOUNDS = (100, 350)
TRUE = np.tile(np.array([50, 200, 800]), 100_000)


def predict(kind: str, size: float, true: np.ndarray = TRUE) -> np.ndarray:
    predictor = LengthPredictor(kind, size)
    return predictor.predict(true, predictor.random_stream(5), BOUNDS)


def test_oracle_knows() -> None:
    assert predict("oracle", 0.0) is TRUE


def test_relative_errors_are_within_p95_for_95_percent_when_gaussian() -> None:
    errors = predict("gaussian", 0.3, np.full(300_000, 10_000)) / 10_000 - 1.0
    assert np.mean(np.abs(errors) <= 0.3) == pytest.approx(0.95, abs=0.002)
    assert errors.mean() == pytest.approx(0.0, abs=0.001)
    assert errors.std() == pytest.approx(0.3 / 1.96, rel=0.01)


def test_errors_have_the_deviation_when_sd() -> None:
    errors = predict("sd", 40.0, np.full(300_000, 1000)) - 1000
    assert errors.std() == pytest.approx(40.0, rel=0.01)
    assert errors.mean() == pytest.approx(0.0, abs=0.5)


def test_another_class_is_predicted_at_the_rate_when_misclass() -> None:
    found = predict("misclass", 0.25)
    wrong = found != TRUE
    assert wrong.mean() == pytest.approx(0.25, abs=0.003)
    typical = typical_lengths(BOUNDS)
    assert typical.tolist() == [50, 225, 525]
    for k, true in enumerate((50, 200, 800)):
        seen, counts = np.unique(found[wrong & (true == TRUE)], return_counts=True)
        assert seen.tolist() == np.delete(typical, k).tolist()
        assert counts[0] / counts.sum() == pytest.approx(0.5, abs=0.01)


def test_a_class_next_to_the_true_one_is_predicted_when_neighbour() -> None:
    found = predict("neighbour", 0.25)
    wrong = found != TRUE
    assert wrong.mean() == pytest.approx(0.25, abs=0.003)
    for true, beside in ((50, [225]), (200, [50, 525]), (800, [225])):
        seen, counts = np.unique(found[wrong & (true == TRUE)], return_counts=True)
        assert seen.tolist() == beside
        assert counts[0] / counts.sum() == pytest.approx(1.0 / len(beside), abs=0.01)


def test_classes_are_predicted_as_often_as_the_confusion_says() -> None:
    predictor = LengthPredictor("confusion", confusion=Confusion(BOUNDS, ((6, 3, 1), (0, 1, 0), (0, 1, 3))))
    found = predictor.predict(TRUE, predictor.random_stream(5))
    for true, shares in ((50, {50: 0.6, 225: 0.3, 525: 0.1}), (200, {225: 1.0}), (800, {225: 0.25, 525: 0.75})):
        seen, counts = np.unique(found[true == TRUE], return_counts=True)
        assert dict(zip(seen.tolist(), (counts / counts.sum()).tolist(), strict=True)) == pytest.approx(
            shares, abs=0.006
        )


def test_nothing_is_known_of_a_request_when_constant() -> None:
    assert set(predict("constant", 129.4).tolist()) == {129}


def test_predictions_are_at_least_one_token() -> None:
    assert predict("gaussian", 5.0, np.ones(1000, np.int64)).min() == 1
    assert predict("sd", 500.0).min() == 1


@given(
    st.sampled_from(
        [
            *(
                LengthPredictor(*kind)
                for kind in (("gaussian", 0.4), ("misclass", 0.5), ("neighbour", 0.5), ("sd", 30.0))
            ),
            LengthPredictor("confusion", confusion=Confusion((100,), ((3.0, 1.0), (1.0, 4.0)))),
        ]
    ),
    st.lists(st.integers(0, 300), max_size=6),
)
def test_predictions_are_the_same_when_blocks_differ(predictor: LengthPredictor, ends: list[int]) -> None:
    true = TRUE[:300]
    rng = predictor.random_stream(5)
    parts = [predictor.predict(part, rng, BOUNDS) for part in np.split(true, sorted(ends))]
    whole = predictor.predict(true, predictor.random_stream(5), BOUNDS)
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("kind", ["misclass", "neighbour"])
def test_wrong_classes_are_refused_when_there_is_one_class(kind: str) -> None:
    predictor = LengthPredictor(kind, 0.1)
    with pytest.raises(ValueError, match=f"{kind} needs at least two output classes"):
        predictor.predict(TRUE, predictor.random_stream(1), ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", LengthPredictor()),
        ("{length_predictor: oracle}", LengthPredictor()),
        ("{length_predictor: {gaussian: 0.3}}", LengthPredictor("gaussian", 0.3)),
        ("{length_predictor: {misclass: 0.1}}", LengthPredictor("misclass", 0.1)),
        ("{length_predictor: {neighbour: 0.1}}", LengthPredictor("neighbour", 0.1)),
        ("{length_predictor: {sd: 40}}", LengthPredictor("sd", 40.0)),
        ("{length_predictor: {constant: 129}}", LengthPredictor("constant", 129.0)),
        (
            "{length_predictor: {confusion: {borders: [100], requests: [[3, 1], [0, 4]]}}}",
            LengthPredictor("confusion", confusion=Confusion((100,), ((3.0, 1.0), (0.0, 4.0)))),
        ),
    ],
)
def test_predictor_is_read(text: str, expected: LengthPredictor) -> None:
    assert read_predictor(section(text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{length_predictor: magic}", "length_predictor: must be oracle, {constant: TOKENS}, {gaussian: P95}"),
        ("{length_predictor: {gausian: 1}}", "gausian: unknown field; did you mean gaussian"),
        ("{length_predictor: {}}", "must have one of confusion, constant, gaussian, misclass, neighbour, sd, not 0"),
        ("{length_predictor: {sd: 1, gaussian: 1}}", "must have one of .*, not 2"),
        ("{length_predictor: {misclass: 1.5}}", "misclass: is a share of requests"),
        ("{length_predictor: {neighbour: 2}}", "neighbour: is a share of requests"),
        ("{length_predictor: {sd: -1}}", "sd: must be at least 0"),
        ("{length_predictor: {constant: 0}}", "constant: must be at least 1"),
        ("{length_predictor: {sd: 1, confusion: {borders: [9]}}}", "must have one of .*, not 2"),
        ("{length_predictor: {confusion: {borders: [9], requests: 3}}}", "requests: must be a list of lists"),
        ("{length_predictor: {confusion: {borders: [9], requests: [[1, 2], [x, 1]]}}}", "requests.row 1: .* 'x'"),
        ("{length_predictor: {confusion: {borders: [9], requests: [[1, 2]]}}}", "requests: 1 borders make 2 classes"),
        ("{length_predictor: {confusion: {borders: [9, 9], requests: []}}}", "borders: must ascend"),
        ("{length_predictor: {confusion: {borders: [9], requests: [[1, -1], [1, 1]]}}}", "requests: are counted"),
        ("{length_predictor: {confusion: {borders: [9], requests: [[0, 0], [1, 1]]}}}", "every true class needs some"),
        ("{length_predictor: {confusion: {borders: [9], requests: [[1, 1], [1, 1]], rows: 1}}}", "rows: unknown field"),
    ],
)
def test_predictor_is_refused_when_wrong(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_predictor(section(text))
