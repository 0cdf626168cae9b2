"""The form of What-if: which policies it offers."""

from __future__ import annotations

from frontend.whatif.forms import papers
from tests.unit.core.policy.test_presets import YARDSTICKS


def test_each_policy_stands_with_its_paper_and_yardsticks_by_themselves() -> None:
    assert set(dict(papers())["Yardsticks"]) == YARDSTICKS
