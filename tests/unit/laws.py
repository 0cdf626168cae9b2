"""What laws draw from, and how many random examples one takes that is dear: many in `make test-thorough`, else few."""

from __future__ import annotations

from hypothesis import settings

from core.engine.engine_params import MODELS

# Models, each with the TP degrees that its heads can be shared out over.
SPLITS = [(name, tp) for name in sorted(MODELS) for tp in (1, 2, 4, 8) if not MODELS[name].split_fault(tp)]


def thorough() -> bool:
    """Whether more is asked for than in the usual run (tests/conftest.py has the profiles)."""
    return settings().max_examples > settings.get_profile("quick").max_examples


def examples(quick: int) -> int:
    """The profile's number in a thorough run, `quick` otherwise."""
    return settings().max_examples if thorough() else quick
