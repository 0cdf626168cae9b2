"""Which engines can serve one request together, and why none can."""

from __future__ import annotations

import pytest

from pools.kv_connectors import hindrance, shared


@pytest.mark.parametrize(
    ("connectors", "most"),
    [([], ""), (["", ""], ""), (["", "blocks"], "blocks"), (["a", "b", "b", ""], "b"), (["a", "b"], "b")],
)
def test_connector_is_the_one_that_most_engines_have(connectors: list[str], most: str) -> None:
    assert shared(connectors) == most


@pytest.mark.parametrize(
    ("connectors", "words"),
    [
        ([], ""),
        ([""], ""),  # one engine alone: there is nobody to hand anything to
        (["blocks", "blocks"], ""),
        (["blocks", "", "blocks"], ""),
        (["", ""], "no engine can hand"),
        (["blocks", ""], "no two engines have the same"),
        (["blocks", "nixl"], "no two engines have the same"),
    ],
)
def test_why_no_two_serve_a_request_is_said(connectors: list[str], words: str) -> None:
    found = hindrance(connectors)
    assert found.startswith(words)
    assert bool(found) == bool(words)
