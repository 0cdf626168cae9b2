"""How many random examples a law takes that is dear: few at each change, many in `make test-thorough`."""

from __future__ import annotations

from hypothesis import settings


def thorough() -> bool:
    """Whether more is asked for than in the usual run (tests/conftest.py has the profiles)."""
    return settings().max_examples > settings.get_profile("quick").max_examples


def examples(quick: int) -> int:
    """The profile's number in a thorough run, `quick` otherwise."""
    return settings().max_examples if thorough() else quick
