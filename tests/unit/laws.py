"""How many random examples a law takes that is dear: few at each change, many in `make test-slow`."""

from __future__ import annotations

from hypothesis import settings

_USUAL = 100  # what Hypothesis takes where nobody says otherwise


def thorough() -> bool:
    """Whether the profile asks for more than the usual number, as `thorough` in tests/conftest.py does."""
    return settings().max_examples > _USUAL


def examples(quick: int) -> int:
    """The profile's number in a thorough run, `quick` otherwise."""
    return settings().max_examples if thorough() else quick
