"""Plans count on chunks of prompts that engines make."""

from __future__ import annotations

import pytest

from core.observations.request.engine_given import chunk_in_force
from core.ports import EngineLimits

SMALL, LARGE, ANY = EngineLimits(chunk_tokens=256), EngineLimits(chunk_tokens=512), EngineLimits()


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ([], 512),  # the first engines start with what is wanted
        ([LARGE, LARGE], 512),
        ([SMALL, LARGE], 512),
        ([SMALL, SMALL], 256),  # not changed yet
        ([LARGE, ANY], 0),
        ([LARGE, None], 0),
    ],
)
def test_chunk_in_force_is_the_largest_that_an_engine_makes(reported: list[EngineLimits | None], expected: int) -> None:
    assert chunk_in_force(LARGE, reported) == expected
