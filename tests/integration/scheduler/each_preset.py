"""Every preset as a parameter of a test: the papers' own systems each time, their baselines among the slow tests."""

import pytest

from core.policy.presets import PRESETS

SYSTEMS = (
    "greenserve",
    "greenserve_epochs",
    "freesh",
    "dynamollm",
    "single_pool",
    "throttllem",
    "muserve",
    "dynaserve",
)
PARAMETERS = {n: pytest.param(n, marks=() if n in SYSTEMS else pytest.mark.slow("a baseline")) for n in PRESETS}


def few(*quick: str, without: str = "") -> pytest.MarkDecorator:
    """Returns the mark of a test that runs for these presets each time, and for all others among the slow tests."""
    others = pytest.mark.slow("other presets")
    names = (name for name in PRESETS if name != without)
    return pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in quick else others) for n in names])


EACH = pytest.mark.parametrize("name", PARAMETERS.values())
EACH_OTHER = few("freesh", "dynamollm", without="greenserve_epochs")
