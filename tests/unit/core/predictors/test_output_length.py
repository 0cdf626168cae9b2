import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.predictors.output_length import PRIOR_OUTPUT_TOKENS, RESERVOIR, WARM_UP, HistoryQuantilePredictor


def test_prior_is_predicted_when_nothing_was_seen() -> None:
    assert HistoryQuantilePredictor().predict("chat", 100, None) == PRIOR_OUTPUT_TOKENS


def test_prediction_is_bounded_when_max_tokens_is_small() -> None:
    assert HistoryQuantilePredictor().predict("chat", 100, 16) == 16


def test_median_of_like_prompts_is_predicted_when_there_is_history() -> None:
    predictor = HistoryQuantilePredictor()
    for output in range(1, WARM_UP):
        predictor.observe("chat", 100, output)
        predictor.observe("chat", 4000, 500 + output)
    assert predictor.predict("chat", 101, None) == WARM_UP // 2
    assert predictor.predict("chat", 3900, None) == 500 + WARM_UP // 2


def test_prior_holds_when_only_the_first_and_shortest_answers_have_ended() -> None:
    predictor = HistoryQuantilePredictor()
    for _ in range(WARM_UP - 1):
        predictor.observe("chat", 100, 5)
    assert predictor.predict("chat", 100, None) == PRIOR_OUTPUT_TOKENS
    predictor.observe("chat", 100, 5)
    assert predictor.predict("chat", 100, None) == 5


def test_whole_service_is_used_when_a_prompt_length_is_new() -> None:
    predictor = HistoryQuantilePredictor()
    for _ in range(WARM_UP):
        predictor.observe("chat", 100, 42)
    assert predictor.predict("chat", 9000, None) == 42
    assert predictor.predict("code", 9000, None) == PRIOR_OUTPUT_TOKENS


def test_old_history_is_forgotten_when_the_reservoir_is_full() -> None:
    predictor = HistoryQuantilePredictor()
    for output in [10] * RESERVOIR + [90] * RESERVOIR:
        predictor.observe("chat", 100, output)
    assert predictor.predict("chat", 100, None) == 90


def test_quantile_is_refused_when_not_a_share() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        HistoryQuantilePredictor(quantile=50)


@given(st.lists(st.integers(1, 2000), min_size=WARM_UP, max_size=2 * WARM_UP), st.floats(0.0, 1.0))
def test_prediction_is_an_output_seen_when_there_is_history(outputs: list[int], quantile: float) -> None:
    predictor = HistoryQuantilePredictor(quantile)
    for output in outputs:
        predictor.observe("chat", 64, output)
    assert predictor.predict("chat", 64, None) in outputs
