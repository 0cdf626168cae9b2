import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.simulator.workload import read_trace
from core.simulator.workload.columns import block_of
from core.simulator.workload.generate import Generator, generate
from core.simulator.workload.lengths import (
    AZURE_CONV,
    OUTPUT_QUANTILES,
    PROMPT_QUANTILES,
    QUANTILE_SHARES,
    Distribution,
    Exponential,
    Fixed,
    Lengths,
    Lognormal,
    Quantiles,
    quantile_table,
)

COUNT = 400_000


def draw(prompt: Distribution, output: Distribution, correlation: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    return Lengths(prompt, output, correlation).draw(np.random.default_rng(3), COUNT)


def test_lengths_have_the_statistics_of_their_distribution() -> None:
    fixed, exponential = draw(Fixed(1000.0), Exponential(200.0))
    assert set(fixed.tolist()) == {1000}
    assert exponential.mean() == pytest.approx(200.0, rel=0.005)
    assert exponential.std() == pytest.approx(200.0, rel=0.01)
    assert np.median(exponential) == pytest.approx(200.0 * math.log(2.0), abs=1.0)
    lognormal, ones = draw(Lognormal(1500.0, 1.2), Exponential(1.0))
    assert lognormal.mean() == pytest.approx(1500.0, rel=0.02)
    assert np.log(lognormal).std() == pytest.approx(1.2, rel=0.005)
    assert set(ones.tolist()) == {1}


def test_lengths_have_the_quantiles_of_their_table() -> None:
    for drawn, table in zip(
        AZURE_CONV.draw(np.random.default_rng(3), COUNT), (PROMPT_QUANTILES, OUTPUT_QUANTILES), strict=True
    ):
        assert drawn.min() >= table[0]
        assert drawn.max() <= table[-1]
        inner = QUANTILE_SHARES[2:-2]
        assert np.quantile(drawn, inner) == pytest.approx(table[2:-2], rel=0.02)


@pytest.mark.parametrize("correlation", [-0.7, 0.0, 0.5, 1.0])
def test_ranks_are_correlated_as_asked_for(correlation: float) -> None:
    prompt, output = draw(Lognormal(1500.0, 1.0), Quantiles((0.0, 0.5, 1.0), (1.0, 500.0, 9000.0)), correlation)
    ranks = [np.argsort(np.argsort(tokens)) for tokens in (prompt, output)]
    spearman = 6.0 / math.pi * math.asin(correlation / 2.0)
    assert np.corrcoef(*ranks)[0, 1] == pytest.approx(spearman, abs=0.005)
    assert prompt.mean() == pytest.approx(1500.0, rel=0.01)
    assert np.median(output) == pytest.approx(500, rel=0.02)


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=30), min_size=1, max_size=5))
def test_table_is_numpys_when_made_from_blocks(tokens: list[list[int]]) -> None:
    made = [np.array(block) for block in tokens]
    table = quantile_table(block_of(np.zeros(block.size), block, 3 * block) for block in made)
    prompt = np.quantile(np.concatenate(made), QUANTILE_SHARES)
    for found, expected in ((table.prompt, prompt), (table.output, 3 * prompt)):
        assert isinstance(found, Quantiles)
        assert found.shares == QUANTILE_SHARES
        np.testing.assert_allclose(found.tokens, expected, rtol=1e-12)


def test_table_makes_requests_like_those_it_was_made_from() -> None:
    table = quantile_table([next(generate(Generator(1.0, AZURE_CONV), 1))])
    assert isinstance(table.prompt, Quantiles)
    assert table.prompt.tokens[2:-2] == pytest.approx(PROMPT_QUANTILES[2:-2], rel=0.03)


def test_table_is_refused_when_there_is_no_request() -> None:
    with pytest.raises(ValueError, match="at least one request"):
        quantile_table([])


def test_published_table_is_the_traces_when_there_is_one(test_data: Path) -> None:
    table = quantile_table(read_trace(test_data / "azure_llm_2023_conv.csv.gz"))
    for found, expected in ((table.prompt, PROMPT_QUANTILES), (table.output, OUTPUT_QUANTILES)):
        assert isinstance(found, Quantiles)
        assert found.tokens == pytest.approx(expected, abs=0.5)
