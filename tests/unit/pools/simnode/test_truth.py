from __future__ import annotations

import pytest

from core.engine.corrections import KNOTS, Correction, configuration, correct
from core.engine.engine_model import closed_form
from core.engine.iteration import Totals
from pools.simnode.truth import Truth, Truths, parse_truth

ENGINE = ("Llama3-8B", "A100-80GB", 1, "vllm-v1")
WORK = Totals(decodes=8.0, context_tokens=4_000.0)


def test_engine_takes_other_times_and_watts_when_their_truth_says_so() -> None:
    truths, modelled = Truths(), closed_form(*ENGINE)
    assert truths.engine("chat", *ENGINE) == modelled
    truths.tell(Truth(1.3, 1.2), "chat")
    found, before = truths.engine("chat", *ENGINE).iteration_of(1005.0, WORK), modelled.iteration_of(1005.0, WORK)
    assert found.t_s == pytest.approx(1.3 * before.t_s)
    assert found.watts == pytest.approx(1.2 * before.watts)
    assert truths.engine("other", *ENGINE) == modelled
    truths.tell(Truth(0.9))
    assert truths.of("chat") == Truth(0.9)


def test_truth_stands_when_the_product_believes_something_else() -> None:
    believed = Correction((2.0,) * KNOTS, (2.0,) * KNOTS)
    correct({configuration(*ENGINE): believed})
    try:
        found = Truths().engine("chat", *ENGINE).iteration_of(1005.0, WORK)
    finally:
        correct({})
    assert found == closed_form(*ENGINE).iteration_of(1005.0, WORK)


def test_option_is_read_or_refused() -> None:
    assert parse_truth("1.3:1.2") == Truth(1.3, 1.2)
    assert parse_truth("0.8") == Truth(0.8, 1.0)
    for text in ("fast", "1.3:", "9:1", "1:0.1"):
        with pytest.raises(ValueError, match="TIME:POWER"):
            parse_truth(text)
